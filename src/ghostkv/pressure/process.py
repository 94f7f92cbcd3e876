"""A server as a process group of its own: started, waited for, weighed, ended; it never outlives this program."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from ghostkv.errors import GhostError
from ghostkv.pressure.wire import Address, get

_GUARD = """
import os, signal, sys
if not sys.stdin.read():
    try:
        os.killpg(int(sys.argv[1]), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""
"""Waits for a word or for the end of its input, which comes however this program ends, and then ends the group."""

_ERROR = re.compile(r"(?<!\w)\w*[Ee]rror: ")
_PATH = re.compile(r"(?<![\w.])/\S*/")
_POLL_S = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class NotStarted(GhostError):
    """A server that ended before it answered, or did not answer in time; `log` is all that it wrote."""

    code = "not_started"

    def __init__(self, what: str, log: str) -> None:
        """The message tells of the log its first error, else its last line, without paths of this machine."""
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.search(line) and " WARNING " not in line]
        told = next(iter([*errors, *lines[-1:]]), "it said nothing")
        super().__init__(f"{what}: {_PATH.sub('.../', told)[:300]}")
        self.log = log


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one server."""

    command: tuple[str, ...]
    port: int
    health: str = "/health"
    environment: Mapping[str, str] = field(default_factory=dict)
    patience_s: float = 1200.0
    """Loading, compiling and checking may take so long."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


class ServerProcess:
    """One running server. A context manager."""

    def __init__(self, launch: Launch, stop_s: float = 20.0) -> None:
        """Start it. After `stop_s` seconds a server that was told to end is killed."""
        self.address = Address(launch.port)
        self._launch = launch
        self._stop_s = stop_s
        self._log: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - lives as long as the server
        self._process = subprocess.Popen(
            launch.command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(launch.environment),
            start_new_session=True,
        )
        guard = [sys.executable, "-S", "-c", _GUARD, str(self._process.pid)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def __enter__(self) -> Self:
        """The server itself; it may not answer yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the whole group, gently at first."""
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._stop_s)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.communicate("over")
        self._log.close()

    async def ready(self) -> float:
        """Wait until it answers; the seconds that took. Raises NotStarted."""
        begun = time.perf_counter()
        while True:
            status, _ = await get(self.address, self._launch.health)
            seconds = time.perf_counter() - begun
            if status == 200:
                return seconds
            if (code := self._process.poll()) is not None:
                raise NotStarted(f"exit code {code}", self._written())
            if seconds > self._launch.patience_s:
                raise NotStarted(f"no answer within {self._launch.patience_s:.0f} s", self._written())
            await asyncio.sleep(_POLL_S)

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def tree(self) -> list[int]:
        """Ids of its process and of all that came of it."""
        return _descendants(self._process.pid)

    def _written(self) -> str:
        self._log.seek(0)
        return self._log.read()


def resident_bytes(pids: list[int]) -> int:
    """RSS of these processes together; pages that they share are counted for each."""
    return sum(int(text.split()[1]) * _PAGE for pid in pids if (text := _proc(pid, "statm")))


def cpu_seconds(pids: list[int]) -> float:
    """Processor time of these and of their children that have ended."""
    ticks = 0
    for pid in pids:
        if text := _proc(pid, "stat"):
            ticks += sum(map(int, text.rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS


def _descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (text := _proc(int(entry.name), "stat")):
            children.setdefault(int(text.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, open_ = [], [root]
    while open_:
        found.append(open_.pop())
        open_ += children.get(found[-1], ())
    return found


def _proc(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
