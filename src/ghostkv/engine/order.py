"""Who comes first: decodes before prefill, and whose turn it is in line.

Between tenants virtual token counters decide (VTC, Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024): who waits and was served least comes first. Each segment is charged as it is served, the prompt that a boundary
assembles like any other. A tenant with nothing running comes before those that have something.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ghostkv.engine.sequence import Sequence
from ghostkv.request import SegmentRequest

PROMPT_CHARGE = 1.0  # of a computed prompt token
OUTPUT_CHARGE = 2.0  # of an output token; the paper's weights
REMEMBERED_S = 600.0  # a tenant that asked within so long may come back


def by_phase(running: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling), each in order of admission."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in running:
        (decoding if sequence.decoding else prefilling).append(sequence)
    return decoding, prefilling


@dataclass(slots=True)
class Waiting:
    """A request in line."""

    request: SegmentRequest
    since: float  # seconds, the engine's clock
    short: bool = False  # it was first in line and blocks were missing


@dataclass(slots=True)
class _Account:
    """One tenant's."""

    arriving: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    resuming: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)  # answers that have begun
    running: int = 0  # requests
    served: float = 0.0  # charged so far
    seen: float = 0.0  # when it last asked

    @property
    def oldest(self) -> float:
        """Since when the one waits that waits longest; there must be one."""
        return min(next(iter(queue.values())).since for queue in (self.arriving, self.resuming) if queue)

    @property
    def active(self) -> bool:
        return bool(self.running or self.arriving or self.resuming)

    def first(self, now: float, max_wait_s: float) -> Waiting:
        """Whoever has waited too long, longest first; then next segments of answers that have begun; then the rest."""
        heads = [next(iter(queue.values())) for queue in (self.resuming, self.arriving) if queue]
        longest = min(heads, key=lambda waiting: waiting.since)
        return longest if now - longest.since >= max_wait_s else heads[0]


class Line:
    """The requests that wait. Only its head may be admitted, so a large request is not overtaken for ever."""

    def __init__(self, max_wait_s: float = float("inf")) -> None:
        """Whoever waits for `max_wait_s` comes before the rest of its tenant's."""
        self._max_wait_s = max_wait_s
        self._accounts: dict[str, _Account] = {}
        self._owner: dict[str, str] = {}  # request id -> account
        self._arriving = 0
        self._level = 0.0  # that the least served active tenant had last

    def __len__(self) -> int:
        return len(self._owner)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._owner

    @property
    def arriving(self) -> int:
        """Requests of answers that have not begun."""
        return self._arriving

    def oldest(self, now: float) -> float:
        """Seconds that the request longest in line has waited; 0 where none waits."""
        if not self._owner:
            return 0.0
        return now - min(account.oldest for account in self._accounts.values() if account.arriving or account.resuming)

    def head(self, now: float) -> Waiting | None:
        """Who may be admitted next."""
        if not self._owner:
            return None
        waiting = (account for account in self._accounts.values() if account.arriving or account.resuming)
        account = min(waiting, key=lambda account: (account.running > 0, account.served, account.oldest))
        return account.first(now, self._max_wait_s)

    def add(self, request: SegmentRequest, now: float, *, begun: bool) -> None:
        """To the end of its tenant's line, or of that part of it whose answers have begun."""
        account = self._account(request.account, now, begun=begun)
        (account.resuming if begun else account.arriving)[request.id] = Waiting(request, now)
        self._owner[request.id] = request.account
        self._arriving += not begun

    def pop(self, request_id: str) -> Waiting | None:
        """Take a request out; None for an unknown id."""
        owner = self._owner.pop(request_id, None)
        if owner is None:
            return None
        account = self._accounts[owner]
        if request_id in account.arriving:
            self._arriving -= 1
        return account.arriving.pop(request_id, None) or account.resuming.pop(request_id)

    def started(self, owner: str, prompt: int) -> None:
        """A request of tenant `owner` runs; `prompt` tokens of it are to be computed."""
        account = self._accounts[owner]
        account.running += 1
        account.served += PROMPT_CHARGE * prompt

    def chose(self, owner: str, tokens: int) -> None:
        """A request of tenant `owner` has so many more output tokens."""
        self._accounts[owner].served += OUTPUT_CHARGE * tokens

    def ended(self, owner: str) -> None:
        """A request of tenant `owner` runs no more."""
        self._accounts[owner].running -= 1

    def served(self, owner: str) -> float:
        """What tenant `owner` was charged, lifted to what others had when it came back."""
        account = self._accounts.get(owner)
        return self._level if account is None else account.served

    def absent(self, owner: str, now: float) -> bool:
        """Whether a tenant other than `owner` has nothing running or waiting, but may come back any moment."""
        return len(self._accounts) > 1 and any(
            name != owner and not account.active and now - account.seen < REMEMBERED_S
            for name, account in self._accounts.items()
        )

    def _account(self, owner: str, now: float, *, begun: bool) -> _Account:
        """The tenant's account. Who comes back gets no credit for the time away: at least the least served's count.

        Between two segments of an answer nobody was away.
        """
        account = self._accounts.get(owner)
        if account is None or not account.active:
            served = [other.served for other in self._accounts.values() if other.active]
            self._level = max(self._level, min(served, default=0.0))
            self._forget(now)
            account = self._accounts.setdefault(owner, account or _Account())
            if not begun or not account.served:
                account.served = max(account.served, self._level)
        account.seen = now
        return account

    def _forget(self, now: float) -> None:
        """Tenants that were away for long, and by now would not be told from new ones."""
        for name, account in list(self._accounts.items()):
            if not account.active and now - account.seen >= REMEMBERED_S and account.served <= self._level:
                del self._accounts[name]
