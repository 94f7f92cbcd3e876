"""The secret that servers share which hand sessions over, and that exported capsules are sealed with."""

from __future__ import annotations

from pathlib import Path

from ghostkv.errors import ConfigError

_LEAST = 16  # bytes


def read_secret(file: Path | None) -> bytes:
    """The shared secret; empty without a file. Raises ConfigError."""
    if file is None:
        return b""
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if len(secret) < _LEAST:
        raise ConfigError(f"{file} has {len(secret)} bytes, but a secret needs at least {_LEAST}")
    return secret
