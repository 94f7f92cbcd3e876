"""ghostkv: an LLM serving engine whose KV cache is bounded per session.

`LLM` is where to start. Names are imported on first use, so that `import ghostkv` brings neither torch nor a model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ghostkv.config import EngineConfig
    from ghostkv.errors import (
        ConfigError,
        ContextLengthExceeded,
        EngineFault,
        GhostError,
        InvalidRequest,
        ModelError,
        Overloaded,
    )
    from ghostkv.llm import LLM, Answer
    from ghostkv.request import Message, ToolCall

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Answer",
    "ConfigError",
    "ContextLengthExceeded",
    "EngineConfig",
    "EngineFault",
    "GhostError",
    "InvalidRequest",
    "Message",
    "ModelError",
    "Overloaded",
    "ToolCall",
    "__version__",
]

_HOME = {  # the others are errors
    "LLM": "llm",
    "Answer": "llm",
    "EngineConfig": "config",
    "Message": "request",
    "ToolCall": "request",
}


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module(f"ghostkv.{_HOME.get(name, 'errors')}"), name)
    raise AttributeError(f"module 'ghostkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
