"""What the stores have in common: one thread writes, and what has come in by the time it looks is one transaction.

So many sessions share one wait for the disk, and nobody but who asked waits for it. How something is written, where and
whether it may be, is each store's own.
"""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ghostkv.errors import StoreError
from ghostkv.session.capsule import Capsule
from ghostkv.session.parts import Change, Written, change
from ghostkv.session.table import Key

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """Something to write: a capsule, or None to delete."""

    key: Key
    capsule: Capsule | None
    expired: bool = False  # of a deletion: nobody asked for it
    done: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Work:
    """Something else for the thread, once all before it is written."""

    do: Callable[[], Any]
    done: Future[Any] = field(default_factory=Future)


class WritingStore(ABC):
    """`session.store.Store` but for what is read at the start."""

    _beat_s: float | None = None
    """Seconds that the thread waits for something to come in before it calls `_beat`; None: for ever."""

    def __init__(self) -> None:
        self._written: dict[Key, Written] = {}  # of the writing thread, once that runs
        self._failing = False
        self._tasks: queue.SimpleQueue[Task | _Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="store", daemon=True)

    def keep(self, key: Key, capsule: Capsule) -> Future[None]:
        """See Store."""
        return self._put(Task(key, capsule))

    def forget(self, key: Key, *, expired: bool = False) -> Future[None]:
        """See Store."""
        return self._put(Task(key, None, expired))

    def held(self, key: Key) -> Future[Capsule | None]:
        """See Store."""
        return self._ask(lambda: written.capsule if (written := self._written.get(key)) else None)

    def close(self) -> None:
        """See Store."""
        self._tasks.put(None)
        self._thread.join()
        self._let_go()

    @abstractmethod
    def _refused(self, batch: Mapping[Key, Task]) -> Mapping[Key, Exception]:
        """Which of these may not be written, and why. Raises where nothing can be."""

    @abstractmethod
    def _apply(self, changes: Mapping[Key, Change | None]) -> None:
        """Write them, all or none; they outlive the loss of power when it returns. None: delete."""

    @abstractmethod
    def _let_go(self) -> None:
        """The thread has ended: close what is open."""

    @abstractmethod
    def _cannot(self, what: str) -> str:
        """A sentence that says so, without secrets."""

    def _erase(self, deleted: list[Key]) -> Mapping[Key, Exception]:
        """Have nothing left of what was deleted. Gives the failure of each of which there may be."""
        return {}

    @abstractmethod
    def _beat(self) -> None:
        """Is called before the thread looks, and once in `_beat_s`. Must not raise."""

    def _before(self, key: Key) -> Written | None:
        """What is surely written of a session."""
        return self._written.get(key)

    def _put(self, task: Task) -> Future[None]:
        task.done.set_running_or_notify_cancel()  # whoever stops waiting for it does not take it back
        self._tasks.put(task)
        return task.done

    def _ask(self, do: Callable[[], T]) -> Future[T]:
        work = _Work(do)
        work.done.set_running_or_notify_cancel()
        self._tasks.put(work)
        return work.done

    def _write(self) -> None:
        """The thread."""
        last = False
        while not last:
            self._beat()
            batch: list[Task] = []
            for each in self._arrived():
                if isinstance(each, Task):
                    batch.append(each)
                    continue
                self._commit(batch)
                batch, last = [], each is None
                if each is not None:
                    _answer(each)
            self._commit(batch)

    def _arrived(self) -> Iterable[Task | _Work | None]:
        """What has come in; waits for something, or for the time of the next beat. None is the last there is."""
        found: list[Task | _Work | None] = []
        with suppress(queue.Empty):
            found.append(self._tasks.get(timeout=self._beat_s))
            while found[-1] is not None:
                found.append(self._tasks.get_nowait())
        return found

    def _commit(self, batch: list[Task]) -> None:
        if not batch:
            return
        latest = {task.key: task for task in batch}  # in order of arrival
        failed: dict[Key, Exception] = {}
        changes: dict[Key, Change | None] = {}
        try:
            failed |= self._refused(latest)
            changes, unwritable = self._changes({key: task for key, task in latest.items() if key not in failed})
            failed |= unwritable
            self._apply(changes)
        except Exception as problem:  # noqa: BLE001 - whatever it is, others wait for this thread
            said = self._failure(problem)
            failed |= {key: StoreError(said) for key in latest if key not in failed}  # each raises his own
        else:
            self._failing = False
            self._note(changes)
            failed |= self._erase([key for key, made in changes.items() if made is None])
        for task in batch:
            if (error := failed.get(task.key)) is None:
                task.done.set_result(None)
            else:
                task.done.set_exception(error)

    def _failure(self, problem: Exception) -> str:
        said = problem.message if isinstance(problem, StoreError) else self._cannot(f"be written: {problem}")
        if not self._failing:
            _log.error("%s", said)
        self._failing = True
        return said

    def _changes(self, latest: Mapping[Key, Task]) -> tuple[dict[Key, Change | None], dict[Key, Exception]]:
        changes: dict[Key, Change | None] = {}
        failed: dict[Key, Exception] = {}
        for key, task in latest.items():
            try:
                changes[key] = None if task.capsule is None else change(key, self._before(key), task.capsule)
            except Exception as error:  # noqa: BLE001 - one session that cannot be written down is no other's concern
                failed[key] = error
        return changes, failed

    def _note(self, changes: Mapping[Key, Change | None]) -> None:
        for key, made in changes.items():
            if made is None:
                self._written.pop(key, None)
            else:
                self._written[key] = made.written


def _answer(work: _Work) -> None:
    try:
        work.done.set_result(work.do())
    except Exception as error:  # noqa: BLE001 - whoever asked raises it
        work.done.set_exception(error)
