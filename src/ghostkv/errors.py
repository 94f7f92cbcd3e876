"""The one error tree.

GhostError
├── ConfigError              start-up: a flag, pool or placement that can never work
├── ModelError               start-up: a weight file, tokenizer or template that cannot be used
├── InvalidRequest      400  the request is wrong; `param` names the field
│   ├── ContextLengthExceeded   400  prompt and answer never fit context or pool
│   ├── Unsupported             400  a field that this build or backend does not honour
│   ├── DeadEnd                 400  an answer came to a point where its grammar lets nothing follow
│   ├── PreviousResponseNotFound  400  a request goes on from a response that is not stored
│   ├── KeyReused               422  an Idempotency-Key that was used for another request
│   └── BodyTooLarge            413  more bytes than a request may have
├── InvalidKey          401  no API key, or one that is not known
├── NotAllowed          403  the key is known, but this is for admins
├── ModelNotFound       404
├── ResponseNotFound    404
├── SessionNotFound     404
├── SessionExists       409  a session of that id
├── SessionBusy         409  its last answer is being read; one writer at a time
├── RecordRefused       409  a stored session that is damaged, was made elsewhere, or is of a newer form
├── StoreError          503  what is to be kept cannot be written: the disk is full, the file is gone
│   └── SessionElsewhere        409  another server on the same store is answering in the session
├── Interrupted         409  an answer that another request, or nobody's interest, ended before it was complete
├── DeadlineExceeded    408  the answer was not complete when the request's deadline passed
├── Overloaded          429  the waiting line is full; try again later
├── RateLimited         429  one API key's own limit
├── EngineFault         503  the engine thread died; every pending request gets this
├── Draining            503  the server is shutting down
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


class DeadEnd(InvalidRequest):
    """An answer came to a point where its grammar lets nothing follow, and is not complete there."""

    code = "grammar_dead_end"


class BodyTooLarge(InvalidRequest):
    """The request has more bytes than one may have."""

    http_status = 413
    code = "request_too_large"


class KeyReused(InvalidRequest):
    """The tenant has used this Idempotency-Key for another request."""

    http_status = 422
    code = "idempotency_key_reused"


class InvalidKey(GhostError):
    """The request has no API key, or one that is not known."""

    http_status = 401
    code = "invalid_api_key"


class NotAllowed(GhostError):
    """The key is known, but what is asked for needs an admin's."""

    http_status = 403
    code = "permission_denied"


class PreviousResponseNotFound(InvalidRequest):
    """The response that a request goes on from is not stored, or not for this tenant."""

    code = "previous_response_not_found"


class ResponseNotFound(GhostError):
    """The tenant has no stored response of that id."""

    http_status = 404
    code = "response_not_found"


class ModelNotFound(GhostError):
    """The named model is not served here."""

    http_status = 404
    code = "model_not_found"


class DeadlineExceeded(GhostError):
    """The answer was not complete when the request's deadline passed. Sending it again at once would not help."""

    http_status = 408
    code = "deadline_exceeded"


class SessionNotFound(GhostError):
    """The tenant has no session of that id."""

    http_status = 404
    code = "session_not_found"


class SessionExists(GhostError):
    """The tenant has a session of that id already."""

    http_status = 409
    code = "session_exists"


class SessionBusy(GhostError):
    """The session is answering, and somebody reads that answer."""

    http_status = 409
    code = "session_busy"


class Overloaded(GhostError):
    """The waiting line is full; `retry_after` seconds later it may have room."""

    http_status = 429
    code = "overloaded"

    def __init__(self, message: str, *, param: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


class RateLimited(GhostError):
    """An API key has used up what it may; `retry_after` seconds later it may ask again."""

    http_status = 429
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RecordRefused(GhostError):
    """A stored session or capsule that cannot be used here: damaged, of another manifest, or of another version."""

    http_status = 409
    code = "record_refused"


class StoreError(GhostError):
    """The store cannot write or read. What it committed stays; what is not kept there goes on."""

    http_status = 503
    code = "store_unavailable"


class SessionElsewhere(StoreError):
    """Another server on the same store answers in the session, or has taken it over."""

    http_status = 409
    code = "session_elsewhere"


class Interrupted(GhostError):
    """A session's answer was ended before it was complete, and nothing can be added to it."""

    http_status = 409
    code = "answer_interrupted"


class EngineFault(GhostError):
    """The engine thread stopped on an error; health is red."""

    http_status = 503
    code = "engine_fault"


class ReplicaLost(GhostError):
    """The replica that was answering has died; whether it did what it was asked for is not known."""

    http_status = 503
    code = "replica_lost"


class Draining(GhostError):
    """The server is shutting down; `retry_after` seconds later another may stand in its place."""

    http_status = 503
    code = "draining"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PayloadError(GhostError):
    """A stored payload or archive that is damaged or of another version, or a byte budget that cannot hold one."""

    code = "payload_error"


class InvariantViolation(GhostError):
    """Block, index or ledger bookkeeping contradicts itself."""

    code = "invariant_violation"
