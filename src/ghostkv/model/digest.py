"""One name for a model's content, stable across machines and paths.

It identifies KV blocks, cached weights and capsules, so it covers every file that decides a logit or a token id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from ghostkv.config import cache_dir

_REMEMBERED = 2**24  # bytes; smaller files are hashed each time
_SETTLED = 2.0  # seconds; a file changed more recently could change again within one tick of its time stamp


def content_digest(files: Iterable[Path]) -> str:
    """32 hex digits of SHA-256 over the contents of `files`, given in any order; renaming a lone file changes nothing.

    The digest of a large file is remembered in the cache directory by path, size and modification time.
    """
    total = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        total.update(f"{_file_digest(file)}\n".encode())
    return total.hexdigest()[:32]


def _file_digest(file: Path) -> str:
    stat = file.stat()
    if stat.st_size < _REMEMBERED:
        return _hash(file)
    key = hashlib.sha256(f"{file.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:32]
    note = cache_dir() / "digests" / key
    with contextlib.suppress(OSError):
        known = note.read_text(encoding="ascii", errors="replace")
        if len(known) == 64:
            return known
    digest = _hash(file)
    if time.time() - stat.st_mtime > _SETTLED:
        with contextlib.suppress(OSError):  # only saves time: a cache that cannot be written is no error
            note.parent.mkdir(parents=True, exist_ok=True)
            draft = note.with_name(f"{key}.{os.getpid()}")
            draft.write_text(digest, encoding="ascii")
            draft.replace(note)
    return digest


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
