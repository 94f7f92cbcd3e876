"""The engine on a thread of its own, for asyncio callers on any number of event loops.

Commands go to the thread through one queue; the deltas of a step come back by one call per event loop. It decides
nothing: it moves requests, deltas and failures. No path leaves a caller waiting: a stream ends with a finish or an
error.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from ghostkv.engine.engine import Engine
from ghostkv.errors import DeadlineExceeded, EngineFault, GhostError, InvalidRequest, Overloaded
from ghostkv.request import Delta, SegmentRequest

_log = logging.getLogger(__name__)
_SETTLE_S = 0.05  # idle for this long is idle: the next segment of a session usually arrives within it

T = TypeVar("T")
Item = Delta | GhostError


class _Stream:
    """The way back to one caller. Compared by identity, so a reused request id never reaches another's stream."""

    __slots__ = ("items", "loop", "request_id")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.loop = asyncio.get_running_loop()
        self.items: asyncio.Queue[Item] = asyncio.Queue()


@dataclass(frozen=True, slots=True)
class _Add:
    request: SegmentRequest
    stream: _Stream


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str
    stream: _Stream | None = None  # only if this is the stream of that id; None: whichever it is


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    future: Future[Any]


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Command = _Add | _Cancel | _Call | _Close


class AsyncEngine:
    """Runs an Engine until `close`. After that, and after a fault, every request is answered with EngineFault."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._streams: dict[str, _Stream] = {}  # engine thread only
        self._outbox: list[tuple[_Stream, Item]] = []  # engine thread only; what this step has to say
        self._gate = threading.Lock()  # between posting a command and the thread's end: no command is left unread
        self._ended: str | None = None  # why no command is taken any more
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ghostkv-engine", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether requests are served."""
        return self._ended is None

    @property
    def fault(self) -> BaseException | None:
        """What stopped the engine thread; None while it runs and after an orderly close."""
        return self._fault

    async def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        """Stream one request; the last delta carries `finish`. Closing the iterator early cancels it within one step.

        Raises InvalidRequest, Overloaded or DeadlineExceeded before the first delta, EngineFault where the engine
        dies or was closed.
        """
        stream = _Stream(request.id)
        self._post(_Add(request, stream))
        ended = False
        try:
            while not ended:
                item = await stream.items.get()
                ended = isinstance(item, GhostError) or item.finish is not None
                if isinstance(item, GhostError):
                    raise item
                yield item
        finally:
            if not ended:
                self._post_if_open(_Cancel(request.id, stream))

    def cancel(self, request_id: str) -> None:
        """End a request; its stream gets a last delta with reason "cancelled". Unknown ids are ignored."""
        self._post_if_open(_Cancel(request_id))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the engine thread between two steps. What it raises goes to the caller and nowhere else."""
        future: Future[T] = Future()
        self._post(_Call(function, future))
        return future

    def close(self) -> None:
        """Cancel what is pending, end the thread and wait for it. A second call does nothing."""
        self._post_if_open(_Close())
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _post(self, command: _Command) -> None:
        with self._gate:
            if self._ended is not None:
                raise self._error()
            self._commands.put(command)

    def _post_if_open(self, command: _Command) -> None:
        with self._gate:
            if self._ended is None:
                self._commands.put(command)

    # The engine thread from here on.

    def _run(self) -> None:
        try:
            while self._obey():
                if not self._engine.idle:
                    self._outbox += self._addressed(self._engine.step())
                self._flush()
            for request_id in list(self._streams):
                self._cancel(request_id)
        except BaseException as error:  # noqa: BLE001 - whatever it is, every caller must be answered
            self._end(f"the engine stopped on {type(error).__name__}: {error}", error)
        else:
            self._end("the engine was closed", None)

    def _obey(self) -> bool:
        """Take every command there is; with nothing to compute, sleep until there is one. False: close."""
        command = self._await_command() if self._engine.idle else self._poll()
        while command is not None:
            if isinstance(command, _Close):
                return False
            self._execute(command)
            command = self._poll()
        return True

    def _poll(self) -> _Command | None:
        try:
            return self._commands.get_nowait()
        except Empty:
            return None

    def _await_command(self) -> _Command:
        try:
            return self._commands.get(timeout=_SETTLE_S)
        except Empty:
            self._engine.step()  # checks the books, as nothing is left to compute
            return self._commands.get()

    def _execute(self, command: _Command) -> None:
        if isinstance(command, _Add):
            self._add(command)
        elif isinstance(command, _Cancel):
            stream = self._streams.get(command.request_id)
            if stream is not None and command.stream in (None, stream):
                self._cancel(command.request_id)
        elif isinstance(command, _Call) and command.future.set_running_or_notify_cancel():
            try:
                command.future.set_result(command.function())
            except BaseException as error:  # noqa: BLE001 - it is the caller's function, and the caller's error
                command.future.set_exception(error)

    def _add(self, command: _Add) -> None:
        try:
            self._engine.add(command.request)
        except (InvalidRequest, Overloaded, DeadlineExceeded) as refusal:
            self._outbox.append((command.stream, refusal))
        except BaseException:
            self._commands.put(command)  # unread again, so that the end answers it as well
            raise
        else:
            self._streams[command.request.id] = command.stream

    def _cancel(self, request_id: str) -> None:
        delta = self._engine.cancel(request_id)
        if delta is not None:
            self._outbox += self._addressed([delta])

    def _addressed(self, deltas: list[Delta]) -> list[tuple[_Stream, Item]]:
        addressed: list[tuple[_Stream, Item]] = []
        for delta in deltas:
            stream = self._streams[delta.request_id] if delta.finish is None else self._streams.pop(delta.request_id)
            addressed.append((stream, delta))
        return addressed

    def _flush(self) -> None:
        """Hand everything over, one call per event loop; a loop that is gone takes its requests with it."""
        batches: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, Item]]] = {}
        for stream, item in self._outbox:
            batches.setdefault(stream.loop, []).append((stream, item))
        self._outbox = []
        for loop, batch in batches.items():
            try:
                loop.call_soon_threadsafe(_deliver, batch)
            except RuntimeError:  # the event loop is closed
                for stream in [stream for stream in self._streams.values() if stream.loop is loop]:
                    del self._streams[stream.request_id]
                    self._engine.cancel(stream.request_id)

    def _end(self, why: str, fault: BaseException | None) -> None:
        """Take no more commands, and answer every caller that still waits."""
        with self._gate:
            self._fault, self._ended = fault, why
        if fault is not None:
            _log.critical("%s", why, exc_info=fault)
        while (command := self._poll()) is not None:
            if isinstance(command, _Add):
                self._outbox.append((command.stream, self._error()))
            elif isinstance(command, _Call) and command.future.set_running_or_notify_cancel():
                command.future.set_exception(self._error())
        self._outbox += [(stream, self._error()) for stream in self._streams.values()]
        self._streams.clear()
        self._flush()

    def _error(self) -> EngineFault:
        """One error object for each caller: a traceback is not shared between event loops."""
        error = EngineFault(self._ended or "the engine has stopped")
        error.__cause__ = self._fault
        return error


def _deliver(batch: list[tuple[_Stream, Item]]) -> None:
    for stream, item in batch:
        stream.items.put_nowait(item)
