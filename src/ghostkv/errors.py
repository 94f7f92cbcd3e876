"""The one error tree.

GhostError
├── ConfigError              start-up: a flag, pool or placement that can never work
├── ModelError               start-up: a weight file, tokenizer or template that cannot be used
├── InvalidRequest      400  the request is wrong; `param` names the field
│   ├── ContextLengthExceeded   400  prompt and answer never fit context or pool
│   └── Unsupported             400  a field that this build or backend does not honour
├── ModelNotFound       404
├── Overloaded          429  the waiting line is full; try again later
├── EngineFault         503  the engine thread died; every pending request gets this
├── PayloadError        500  a stored payload or archive that cannot be read, or a byte budget that cannot hold one
└── InvariantViolation  500  bookkeeping is broken; a bug in ghostkv

The server maps a class to its `http_status` and `code`; nothing else does.
"""

from __future__ import annotations


class GhostError(Exception):
    """Base of every error that ghostkv raises on purpose."""

    http_status = 500
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ConfigError(GhostError):
    """A setting that can never work; raised before anything is served."""

    code = "config_error"


class ModelError(GhostError):
    """A model file that cannot be used; the message names the file and, where there is one, the tensor."""

    code = "model_error"


class InvalidRequest(GhostError):
    """The request is wrong; `param` names the field."""

    http_status = 400
    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer can never fit the model's context or the KV pool."""

    code = "context_length_exceeded"


class Unsupported(InvalidRequest):
    """A field whose meaning this build or this backend does not honour."""

    code = "unsupported"


class ModelNotFound(GhostError):
    """The named model is not served here."""

    http_status = 404
    code = "model_not_found"


class Overloaded(GhostError):
    """The waiting line is full."""

    http_status = 429
    code = "overloaded"


class EngineFault(GhostError):
    """The engine thread stopped on an error; health is red."""

    http_status = 503
    code = "engine_fault"


class PayloadError(GhostError):
    """A stored payload or archive that is damaged or of another version, or a byte budget that cannot hold one."""

    code = "payload_error"


class InvariantViolation(GhostError):
    """Block, index or ledger bookkeeping contradicts itself."""

    code = "invariant_violation"
