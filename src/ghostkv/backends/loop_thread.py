"""An event loop on a thread of its own: callers on any loop, or on none, share what lives there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ghostkv.errors import EngineFault

T = TypeVar("T")


class LoopThread:
    """Runs until `close`; what is asked of it then is refused with EngineFault."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._gate = threading.Lock()  # between handing something over and the end: nothing is left unrun
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def open(self) -> bool:
        """Whether it takes more."""
        return not self._closed

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` there."""
        with self._gate:
            if self._closed:
                coroutine.close()
                raise EngineFault("the backend was closed")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, function: Callable[[], object]) -> bool:
        """Call `function` there, soon, in order. False, and nothing happens, after the end."""
        with self._gate:
            if not self._closed:
                self._loop.call_soon_threadsafe(function)
            return not self._closed

    def close(self) -> None:
        """Cancel what runs, wait until it has ended, and end the thread. A second call does nothing."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        pending = asyncio.all_tasks(self._loop)
        for task in pending:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()
