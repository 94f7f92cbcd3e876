"""One upstream among those of a backend: whether it serves, what it is asked now, and what it may have cached."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ghostkv.backends.base import UpstreamState
from ghostkv.backends.upstream import Upstream
from ghostkv.backends.upstream_prefixes import SeenPrefixes, prefix_keys
from ghostkv.backends.upstream_probe import Findings
from ghostkv.errors import InvariantViolation
from ghostkv.protocol.assign import Resource

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Visit:
    """A segment that is at an upstream."""

    member: Member
    found: Findings
    """How this upstream is asked."""
    reads: int
    """Prompt tokens that it has to compute."""
    answered: bool = False
    """Whether a token has come."""

    @property
    def upstream(self) -> Upstream:
        """Where it is."""
        return self.member.upstream

    def heard(self) -> None:
        """A token has come: the prompt is read."""
        self.member.heard = time.monotonic()
        if not self.answered:
            self.answered = True
            self.member.reading -= self.reads


class Member:
    """All its methods belong to one event loop."""

    def __init__(self, upstream: Upstream) -> None:
        """It does not serve before `join`."""
        self.upstream = upstream
        self.found: Findings | None = None
        """How it is asked; None before it was found out."""
        self.healthy = False
        self.known = False
        """Whether what was found out still holds: no check has failed since."""
        self.problem = f"the upstream {upstream.address} was not asked yet"
        """Why it does not serve."""
        self.left = 0
        """Times that it has stopped serving."""
        self.running = 0
        """Segments that it is asked for."""
        self.reading = 0
        """Prompt tokens of those without a token yet, as far as it must compute them."""
        self.failovers = 0
        """Segments that left it because it failed."""
        self.heard = 0.0
        """When it last gave a token, in seconds of `time.monotonic`."""
        self.unfit = False
        """Whether it answers, but cannot do what is offered."""
        self.checked = 0.0
        """When it was last checked, likewise."""
        self.doubt = asyncio.Event()
        """Set where it is to be checked at once."""
        self.checking = asyncio.Lock()
        self._since = time.time()
        self._seen = SeenPrefixes()

    def state(self) -> UpstreamState:
        """What is shown of it."""
        return UpstreamState(self.upstream.address, self.healthy, self._since, self.running, self.failovers)

    def join(self, found: Findings) -> None:
        """It serves from now on."""
        self.found, self.known, self.healthy, self.unfit, self.problem = found, True, True, False, ""
        self._since = time.time()

    def leave(self, problem: str) -> None:
        """It does not serve, until it has joined again."""
        if self.healthy:
            _log.warning("an upstream is left: %s", problem)
            self.healthy, self._since = False, time.time()
            self.left += 1
        self.problem = problem

    def lost(self, problem: str) -> None:
        """It is gone and may come back as another one, with an empty cache."""
        self.leave(problem)
        self.known = self.unfit = False
        self._seen.forget()

    def resource(self, tokens: int, keys: Sequence[int]) -> Resource:
        """What a router sees of it, before a prompt of so many tokens."""
        new = self._to_compute(tokens, keys)
        return Resource(self.upstream.address, strength=0, room=1, new=new, busy=self.running, unread=self.reading)

    @contextmanager
    def visit(self, prompt: Sequence[int], output: Sequence[int]) -> Iterator[Visit]:
        """A segment is here for as long as the block runs; `output` grows meanwhile."""
        if self.found is None:
            raise InvariantViolation(f"the upstream {self.upstream.address} is asked before it has joined")
        ids = (*prompt, *output)
        visit = Visit(self, self.found, self._to_compute(len(ids), prefix_keys(ids)))
        self.running += 1
        self.reading += visit.reads
        try:
            yield visit
        finally:
            self.running -= 1
            if visit.answered:
                self._seen.add(prefix_keys((*prompt, *output)))
            else:
                self.reading -= visit.reads

    def _to_compute(self, tokens: int, keys: Sequence[int]) -> int:
        """The last token of a prompt is always computed, for what follows it."""
        return max(1, tokens - self._seen.tokens(keys))
