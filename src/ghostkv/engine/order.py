"""Who comes first: decodes before prefill, and whose turn it is in line.

Between tenants virtual token counters decide (VTC, Sheng et al., "Fairness in Serving Large Language Models", OSDI
2024): who waits and was served least comes first; inside a tenant they decide between its programs, and inside a
program deadlines do. Each segment is charged as it is served, the prompt that a boundary assembles like any other. A
tenant with nothing running comes before those that have something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ghostkv.engine.accounts import REMEMBERED_S, Account
from ghostkv.engine.queue import Waiting
from ghostkv.engine.sequence import Sequence
from ghostkv.request import SegmentRequest

__all__ = ["OUTPUT_CHARGE", "PROMPT_CHARGE", "REMEMBERED_S", "Line", "Waiting", "by_phase"]

PROMPT_CHARGE = 1.0  # of a computed prompt token
OUTPUT_CHARGE = 2.0  # of an output token; the paper's weights


def by_phase(running: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling), each in order of admission."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in running:
        (decoding if sequence.decoding else prefilling).append(sequence)
    return decoding, prefilling


class Line:
    """The requests that wait. Only its head may be admitted, so a large request is not overtaken for ever."""

    def __init__(self, max_wait_s: float = float("inf")) -> None:
        """Whoever waits for `max_wait_s` comes before the rest of its program's."""
        self._max_wait_s = max_wait_s
        self._accounts: dict[str, Account] = {}
        self._waiting: dict[str, SegmentRequest] = {}
        self._dated: dict[str, Waiting] = {}  # those with deadlines
        self._arriving = 0
        self._level = 0.0  # that the least served active tenant had last

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[Waiting]:
        """Who waits, program by program, answers that have begun first: not in the order of their turns."""
        for account in self._accounts.values():
            for program in account.busy.values():
                yield from program.resuming
                yield from program.arriving

    @property
    def dated(self) -> list[Waiting]:
        """Who waits with a deadline."""
        return list(self._dated.values())

    @property
    def arriving(self) -> int:
        """Requests of answers that have not begun."""
        return self._arriving

    def oldest(self, now: float) -> float:
        """Seconds that the request longest in line has waited; 0 where none waits."""
        return now - min((account.oldest for account in self._lined()), default=now)

    def head(self, now: float) -> Waiting | None:
        """Who may be admitted next."""
        account = self._next()
        return None if account is None else account.next().first(now, self._max_wait_s)

    def claims(self, owner: str) -> bool:
        """Whether a tenant other than `owner` that has nothing running waits: it is first at the next boundary."""
        account = self._next()
        return account is not None and not account.running and account is not self._accounts.get(owner)

    def ahead(self, request: SegmentRequest, deadline: float) -> list[Waiting]:
        """Whose turn comes before that of a request that would come now, about: what counters do to come is not known.

        Whoever of its own program would be before it, and as many of each other program that waits, since all are
        served alike. A tenant with nothing running is first.
        """
        account = self._accounts.get(request.account)
        if account is None or not account.active:
            return []
        mine = account.busy.get(request.program)
        resuming = [] if mine is None else list(mine.resuming)
        arriving = [] if mine is None else mine.arriving.before(deadline)
        own = [*resuming, *arriving]
        others = [program for each in self._lined() for program in each.waiting if program is not mine]
        return own + [waiting for program in others for waiting in program.turns(len(own) + 1)]

    def add(self, request: SegmentRequest, now: float, *, begun: bool) -> None:
        """To the end of its program's line, or of that part of it whose answers have begun."""
        program = self._account(request.account, now, begun=begun).asks(request.program, now, begun=begun)
        waiting = Waiting.of(request, now)
        (program.resuming if begun else program.arriving).add(waiting)
        if request.deadline_s is not None:
            self._dated[request.id] = waiting
        self._waiting[request.id] = request
        self._arriving += not begun

    def pop(self, request_id: str) -> Waiting | None:
        """Take a request out; None for an unknown id. Where it is to run, `started` must follow at once."""
        request = self._waiting.pop(request_id, None)
        if request is None:
            return None
        self._dated.pop(request_id, None)
        account = self._accounts[request.account]
        program = account.busy[request.program]
        waiting = program.arriving.pop(request_id)
        self._arriving -= waiting is not None
        waiting = waiting or program.resuming.pop(request_id)
        account.rests(request.program)
        return waiting

    def started(self, request: SegmentRequest, prompt: int) -> None:
        """A request runs; `prompt` tokens of it are to be computed."""
        account = self._accounts[request.account]
        program = account.begins(request.program)
        account.running += 1
        account.served += PROMPT_CHARGE * prompt
        program.running += 1
        program.served += PROMPT_CHARGE * prompt

    def chose(self, request: SegmentRequest, tokens: int) -> None:
        """A request has so many more output tokens; perhaps it has just ended."""
        account = self._accounts[request.account]
        account.served += OUTPUT_CHARGE * tokens
        account.programs[request.program].served += OUTPUT_CHARGE * tokens

    def ended(self, request: SegmentRequest) -> None:
        """A request runs no more."""
        account = self._accounts[request.account]
        account.running -= 1
        account.busy[request.program].running -= 1
        account.rests(request.program)

    def served(self, owner: str) -> float:
        """What tenant `owner` was charged, lifted to what others had when it came back."""
        account = self._accounts.get(owner)
        return self._level if account is None else account.served

    def programs(self, owner: str) -> dict[str, float]:
        """Likewise each program of a tenant that is remembered."""
        account = self._accounts.get(owner)
        return {} if account is None else {name: program.served for name, program in account.programs.items()}

    def absent(self, owner: str, now: float) -> bool:
        """Whether a tenant other than `owner` has nothing running or waiting, but may come back any moment."""
        return len(self._accounts) > 1 and any(
            name != owner and not account.active and now - account.seen < REMEMBERED_S
            for name, account in self._accounts.items()
        )

    def _lined(self) -> list[Account]:
        """Tenants with requests in line."""
        return [account for account in self._accounts.values() if account.waits] if self._waiting else []

    def _next(self) -> Account | None:
        return min(
            self._lined(), key=lambda account: (account.running > 0, account.served, account.oldest), default=None
        )

    def _account(self, owner: str, now: float, *, begun: bool) -> Account:
        """The tenant's account. Who comes back gets no credit for the time away: at least the least served's count.

        Between two segments of an answer nobody was away.
        """
        account = self._accounts.get(owner)
        if account is None or not account.active:
            served = [other.served for other in self._accounts.values() if other.active]
            self._level = max(self._level, min(served, default=0.0))
            self._forget(now)
            account = self._accounts.setdefault(owner, account or Account())
            if not begun or not account.served:
                account.served = max(account.served, self._level)
        return account

    def _forget(self, now: float) -> None:
        """Tenants that were away for long, and by now would not be told from new ones."""
        for name, account in list(self._accounts.items()):
            if not account.active and now - account.seen >= REMEMBERED_S and account.served <= self._level:
                del self._accounts[name]
