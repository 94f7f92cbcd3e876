"""What a replica needs to start, wherever that is, and how many of them there are to be."""

from __future__ import annotations

from dataclasses import dataclass, field

from ghostkv.config import EngineConfig, ServerConfig
from ghostkv.errors import ConfigError
from ghostkv.server.access import Access
from ghostkv.telemetry.logs import LogFormat, LogLevel


@dataclass(frozen=True, slots=True)
class Upstream:
    """OpenAI-compatible servers of one model that replicas use in place of an engine."""

    urls: tuple[str, ...]
    key: str = field(default="", repr=False)
    model: str = ""  # its id there
    wait_s: float | None = None  # see `launch.open_upstream`


@dataclass(frozen=True, slots=True)
class Settings:
    """Of each replica."""

    model: str | None
    engine: EngineConfig
    server: ServerConfig
    access: Access
    store: str = field(repr=False)  # address of the PostgreSQL database
    lease_s: float
    upstream: Upstream | None = None
    log_format: LogFormat = LogFormat.TEXT
    log_level: LogLevel = LogLevel.INFO

    @property
    def cores(self) -> int:
        """That one takes."""
        return self.engine.threads


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas there are: always `least`, or by load up to `most`."""

    least: int
    most: int
    answers: int = 32
    """Requests under way that autoscaling wants for each replica."""

    @classmethod
    def of(cls, text: str) -> Scale:
        """Of "2" or "1:4". Raises ConfigError."""
        parts = text.split(":")
        if len(parts) > 2 or not all(part.isascii() and part.isdecimal() and 0 < len(part) < 6 for part in parts):
            raise ConfigError(f"{text!r} is no number of replicas: write N, or MIN:MAX to scale with load")
        least, most = int(parts[0]), int(parts[-1])
        if not 1 <= least <= most:
            raise ConfigError(f"there must be at least 1 replica, and no fewer at most than at least, not {text!r}")
        return cls(least, most)
