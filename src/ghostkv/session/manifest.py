"""What an answer's bits depend on besides the request, by name: what a record says of where it was made.

Its digest is `system_fingerprint`. Two that differ can say in what; nothing here decides what follows from that.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path

_LIBRARIES = ("torch", "numba", "llvmlite", "numpy", "tokenizers", "jinja2", "llguidance")
_EXTRACTOR = ("protocol", "residency", "text")  # packages that decide which ids a segment's prompt has
_ENGINE = ("engine", "kv", "model", "session")  # packages that decide what is generated from them, and what is kept
_SHOWN = 16  # characters of a value in a message


@dataclass(frozen=True, slots=True)
class Manifest:
    """Named parts, ascending by name."""

    parts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, model: str, tokenizer: str, template: str) -> Manifest:
        """`model` stands for checkpoint, dtype, codec, build and processor; `tokenizer` is a digest, `template` source.

        The rest is this installation's: versions of ghostkv and of the libraries, and digests of ghostkv's own source,
        so that a changed extractor is seen although no version was raised.
        """
        own = {
            "model": model,
            "tokenizer": tokenizer,
            "template": hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest(),
            "ghostkv": import_module("ghostkv").__version__,  # by name: the package knows all layers
            "extractor": _source(_EXTRACTOR),
            "engine": _source(_ENGINE),
        }
        return cls(tuple(sorted((own | {name: metadata.version(name) for name in _LIBRARIES}).items())))

    @property
    def digest(self) -> str:
        """32 hex digits; equal ones compute equal bits."""
        return hashlib.sha256(json.dumps(self.parts).encode()).hexdigest()[:32]

    def differences(self, other: Manifest) -> str:
        """What differs in `other`, for people: "" where nothing does."""
        mine, others = dict(self.parts), dict(other.parts)
        names = sorted(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))
        return ", ".join(f"{name} is {_short(others.get(name))}, here {_short(mine.get(name))}" for name in names)


def _short(value: str | None) -> str:
    return "not named" if value is None else value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"


@cache
def _source(packages: tuple[str, ...]) -> str:
    """SHA-256, hexadecimal, over the source files of some packages of ghostkv."""
    total, root = hashlib.sha256(), Path(__file__).parents[1]
    for package in packages:
        for file in sorted((root / package).glob("*.py")):
            total.update(f"{package}/{file.name}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()
