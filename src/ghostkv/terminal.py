"""What the commands say and ask: progress on standard error, answers on standard output, prompts from anywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import typer
from rich.console import Console
from rich.status import Status

from ghostkv.errors import ConfigError, EngineFault
from ghostkv.llm import LLM
from ghostkv.session.turn import Finished, Output, SegmentRecord, Turn
from ghostkv.trace import Trace

_LINE_S = 10.0  # at least, between two lines in a log


class Progress:
    """On standard error a spinner with the latest announcement; in a log, of what takes long, a line now and then."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._clock = clock
        self._said = clock()

    def __call__(self, announcement: str) -> None:
        """Show what takes long now."""
        if not self._console.is_terminal:
            if (now := self._clock()) - self._said >= _LINE_S:
                self._said = now
                print(announcement, file=sys.stderr, flush=True)
            return
        if self._status is None:
            self._status = self._console.status(announcement)
            self._status.start()
        self._status.update(announcement)

    def done(self) -> None:
        """Take the spinner away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __enter__(self) -> Self:
        """The callable itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Done."""
        self.done()


def writer(progress: Progress) -> Callable[[str], None]:
    """Writes pieces of an answer to standard output as they come."""

    def write(text: str) -> None:
        if text:
            progress.done()
            sys.stdout.write(text)
            sys.stdout.flush()

    return write


def stream(llm: LLM, turn: Turn, progress: Progress, trace: Trace | None = None) -> str:
    """Write one answer to standard output and its summary to standard error; returns the answer."""
    write = writer(progress)
    progress("reading the prompt")
    pieces: list[str] = []
    started = time.perf_counter()
    for event in llm.events(turn):
        if isinstance(event, Output):
            pieces.append(event.text)
            write(event.text)
        elif isinstance(event, SegmentRecord):
            if trace is not None:
                trace.segments.append(event)
        else:
            if trace is not None:
                trace.plan = event.plan
            write("\n")
            typer.echo(_summary(event, turn, time.perf_counter() - started), err=True)
            return "".join(pieces)
    raise EngineFault(f"the answer to {turn.id} has no end")


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt: as given, from a file, or from standard input for "-". Raises typer.BadParameter for none or two."""
    if (prompt is None) == (file is None):
        raise typer.BadParameter("give a prompt, - for standard input, or --file")
    if file is None:
        return sys.stdin.read() if prompt == "-" else str(prompt)
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text: {error}") from error


def ask() -> str:
    """One line from the user; empty at the end of input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        return ""


def _summary(end: Finished, turn: Turn, seconds: float) -> str:
    unseen = f", {end.unseen_tokens} prompt tokens unseen at the end" if end.unseen_tokens else ""
    exact = "exact" if end.exact else f"not exact{unseen}"
    segments = f"{len(end.segments)} segment" + "s" * (len(end.segments) != 1)
    plan = "" if end.plan is None else f"plan of {len(end.plan.nodes)}, {end.discarded_tokens} tokens discarded; "
    return (
        f"[{turn.residency}: {exact}; {plan}{segments}; {end.prompt_tokens} + {end.completion_tokens} tokens "
        f"in {seconds:.1f} s; {end.reason.value}; seed {turn.sampling.seed}]"
    )
