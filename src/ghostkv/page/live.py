"""What the live page shows of answers and engine: an observer that keeps the last minutes. No user interface in it.

Memory is bounded and an event costs the same whatever is kept. The tokens that an answer holds are derived from its
events, as they come here: prompt and output of its running segment, nothing from the flush to the next segment's first
token. Of a planned answer that is the part that is being read, not parts that are written ahead.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from ghostkv.engine.stats import StepTrace
from ghostkv.errors import GhostError
from ghostkv.page.timeline import Timeline
from ghostkv.session.chain import Carried
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

_ENDED = 64
"""Answers that are kept after their end."""
_OPEN = 256
"""Answers that are watched while they run; more are only counted."""
_POINTS = 360
_SEGMENTS = 200
_APART_S = 1.0
"""Between two points of a curve, but for those of a boundary."""
_PAYLOAD = 64 * 1024
"""Bytes of a payload that is kept."""
_QUESTION = 120
"""Characters of a question that are kept."""


class State(StrEnum):
    """Where an answer is."""

    WAITING = "waiting"  # no token yet
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    STOPPED = "stopped"  # nobody listened any more
    FAILED = "failed"


@dataclass(slots=True)
class Watched:
    """One answer. Tokens; seconds on the clock of Live."""

    number: int  # counted from the server's start
    id: str
    residency: str
    tenant: str
    question: str  # its beginning
    prompt: int  # the client's own
    began: float
    state: State = State.WAITING
    ended: float | None = None
    first: float | None = None  # token
    generated: int = 0
    resident: int = 0
    peak: int = 0  # of resident
    flushed: int = 0  # boundaries
    carried: int = 0  # sums over segments, as are the next two
    recalled: int = 0
    rehydrated: int = 0
    segments: deque[SegmentRecord] = field(default_factory=lambda: deque(maxlen=_SEGMENTS))  # the latest
    curve: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_POINTS))  # (time, resident)
    payload: bytes = b""  # canonical; what its latest closed segment left, where that is kept
    finished: Finished | None = None
    error: str = ""

    @property
    def open(self) -> bool:
        """Whether it goes on."""
        return self.ended is None

    @property
    def payload_bytes(self) -> int:
        """After its latest segment."""
        return self.segments[-1].payload_bytes if self.segments else 0


class Live:
    """`observe.Observer`; reading is for the event loop too."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self.clock = clock
        self.timeline = Timeline(clock)
        self.counts: Counter[State] = Counter()  # of ended answers
        self.flushed = 0  # boundaries
        self.opened = 0  # answers
        self.generated = 0  # tokens
        self._prompt_tokens: Callable[[Turn], int] = lambda turn: len(turn.prompt)
        self._open: dict[str, Watched] = {}
        self._ended: OrderedDict[str, Watched] = OrderedDict()

    def begin(self, worker: Worker) -> None:
        """What is shown runs on `worker`."""
        self._prompt_tokens = worker.prompt_tokens
        capabilities = [one.backend.capabilities() for one in worker.members().values()]
        self.timeline.begin([each.kv_bytes_per_token * each.block_tokens for each in capabilities])

    def stepped(self, worker: int, trace: StepTrace) -> None:
        """A step of the worker of that index; called on its engine's thread."""
        self.timeline.stepped(worker, trace)

    def started(self, turn: Turn) -> None:
        """See Observer."""
        self.opened += 1
        if len(self._open) < _OPEN:
            question = turn.messages[-1].content[:_QUESTION] if turn.messages else ""
            self._open[turn.id] = Watched(
                number=self.opened,
                id=turn.id,
                residency=turn.residency,
                tenant=turn.tenant,
                question=question,
                prompt=self._prompt_tokens(turn),  # counted before, and kept
                began=self.clock(),
            )

    def event(self, turn: Turn, event: Event) -> None:
        """See Observer."""
        if isinstance(event, Output):
            self.generated += len(event.tokens)
        elif isinstance(event, SegmentRecord) and event.boundary is not None:
            self.flushed += 1
        answer = self._open.get(turn.id)
        if answer is None:
            self.timeline.told(len(event.tokens) if isinstance(event, Output) else 0, 0)
        elif isinstance(event, Output):
            self._output(answer, event)
        elif isinstance(event, SegmentRecord):
            self._segment(answer, event)
        else:
            answer.finished = event

    def closed(self, turn: Turn, carried: Carried) -> None:
        """See Observer."""
        answer, data = self._open.get(turn.id), carried.memory.payload.data
        if answer is not None and turn.plan is None:  # the nodes of a plan have one each
            answer.payload = data if len(data) <= _PAYLOAD else b""

    def ended(self, turn: Turn, error: BaseException | None) -> None:
        """See Observer."""
        state = _state(error)
        self.counts[state] += 1
        answer = self._open.pop(turn.id, None)
        if answer is None:
            return
        answer.state, answer.ended = state, self.clock()
        answer.error = error.message if isinstance(error, GhostError) else ""
        self._release(answer)
        self._ended[answer.id] = answer
        while len(self._ended) > _ENDED:
            self._ended.popitem(last=False)

    @property
    def running(self) -> int:
        """Answers that go on, those that are only counted among them."""
        return self.opened - self.counts.total()

    def answers(self) -> list[Watched]:
        """What runs, what waits, both newest first, and what has ended, latest first."""
        going = sorted(self._open.values(), key=lambda answer: (answer.state is State.WAITING, -answer.number))
        return [*going, *reversed(self._ended.values())]

    def answer(self, answer_id: str) -> Watched | None:
        """The answer of that id, while it is kept."""
        return self._open.get(answer_id) or self._ended.get(answer_id)

    def _output(self, answer: Watched, event: Output) -> None:
        now = self.clock()
        answer.state = State.RUNNING
        if answer.first is None and event.tokens:
            answer.first = now
        answer.generated += len(event.tokens)
        held = event.resident or answer.resident
        self.timeline.told(len(event.tokens), held - answer.resident)
        if not answer.resident and held:
            answer.curve.append((now, 0))  # where it rises from
            answer.curve.append((now, held))
        elif not answer.curve or now - answer.curve[-1][0] >= _APART_S:
            answer.curve.append((now, held))
        answer.resident = held
        answer.peak = max(answer.peak, held)

    def _segment(self, answer: Watched, record: SegmentRecord) -> None:
        answer.segments.append(record)
        answer.flushed += record.boundary is not None
        answer.carried += record.tail + record.state
        answer.recalled += record.recalled
        answer.rehydrated += record.rehydrated
        self._release(answer)

    def _release(self, answer: Watched) -> None:
        if not answer.resident:
            return
        now = self.clock()
        answer.curve.append((now, answer.resident))
        answer.curve.append((now, 0))
        self.timeline.told(0, -answer.resident)
        answer.resident = 0


def _state(error: BaseException | None) -> State:
    if error is None:
        return State.DONE
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return State.STOPPED
    return State.REFUSED if isinstance(error, GhostError) and error.http_status < 500 else State.FAILED
