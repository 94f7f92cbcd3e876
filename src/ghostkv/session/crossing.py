"""Seats the segments of one chain among several workers, and carries the open answer to each in its own ids.

The rules are `assign_worker`'s and a router's, and the translation is `translated`'s; here stands who may take a
segment at all. A policy that never flushes stays with workers that compute the first one's bits, a request that names
token ids with workers of the same vocabulary, and a text that ends inside a character likewise, until that is complete.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from ghostkv.backends.base import Backend, Load
from ghostkv.errors import InvalidRequest
from ghostkv.protocol.assign import Resource
from ghostkv.protocol.density import estimate_density
from ghostkv.protocol.reader import Reader
from ghostkv.protocol.render import Encode
from ghostkv.request import domain
from ghostkv.routing import Switch, Ticket, key_of
from ghostkv.session.chain import Carried, Chain
from ghostkv.session.context import TurnContext
from ghostkv.session.limits import check_steering
from ghostkv.session.placed import Placed
from ghostkv.session.seat import Seat
from ghostkv.session.translate import translated
from ghostkv.session.turn import Turn


@dataclass(frozen=True, slots=True)
class Station:
    """A worker as the segments of a turn see it."""

    name: str
    strength: int  # rank among the stations
    backend: Backend
    context: TurnContext
    vocabulary: Hashable  # equal ones mean the same by every id and render messages alike
    following: Encode  # text that follows other text -> ids
    load: Callable[[], Load]
    healthy: Callable[[], bool]
    alike: bool = False  # computes the same bits as the first
    found: Callable[[Sequence[int], str], int] = lambda ids, domain: 0  # tokens whose KV it has


@dataclass(frozen=True, slots=True)
class _Stand:
    """A station that may take segments of this chain."""

    index: int  # of the station
    station: Station
    chain: Chain
    needed: int  # tokens that a segment may hold at most

    def resource(self, ids: Sequence[int]) -> Resource:
        """For a segment whose prompt begins with `ids`; what follows them is of its own and never found."""
        station, turn = self.station, self.chain.turn
        new = len(ids) - min(len(ids) - 1, station.found(ids, domain(turn.trust, turn.steering)))
        return Resource(station.name, station.strength, station.load().free_tokens // self.needed, new)


class Crossing:
    """The seating of one chain, whose own worker is the first station."""

    def __init__(
        self, stations: Sequence[Station], switch: Switch, chain: Chain, *, one_vocabulary: bool = False
    ) -> None:
        """`one_vocabulary`: only among workers that share the first one's."""
        self._switch = switch
        self._bound, able = _able(stations, chain, one_vocabulary=one_vocabulary)
        stands = (_stand(index, station, stations[0], chain) for index, station in enumerate(stations) if able(station))
        self._stands = [stand for stand in stands if stand is not None]
        self._at = self._stands[0]
        self._begun = False
        self._read = 0  # archived ids whose text is known
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._left: dict[Hashable, Carried] = {}  # by vocabulary, as the answer last stood in it
        self._since: dict[Hashable, list[str]] = {stand.station.vocabulary: [] for stand in self._stands}

    def __call__(self, seat: Seat) -> Seat:
        """The next segment's seat."""
        density = seat.carried.density if self._begun else _asked_density(seat.chain)
        whole = not self._begun or self._follow(seat.carried)
        self._begun = True
        candidates = self._candidates(whole=whole)
        stand, reason, ticket = self._choose(candidates, density, seat.carried)
        carried = self._carry(seat.carried, stand)
        self._at = stand
        if len(candidates) == 1:
            reason = self._bound or ("no other can take it" if whole else "the text ends inside a character")
        backend = Placed(stand.station.backend, self._switch, ticket)
        return Seat(backend, stand.chain, carried, stand.station.name, reason)

    def _choose(self, candidates: list[_Stand], density: float, carried: Carried) -> tuple[_Stand, str, Ticket]:
        ids = self._at.chain.select(carried).ids
        resources = [
            stand.resource(ids if stand.station.vocabulary == self._at.station.vocabulary else stand.chain.prompt)
            for stand in candidates
        ]
        key, workers = key_of(self._at.chain.turn.program, ids), [stand.index for stand in candidates]
        assignment, ticket = self._switch.place(density, key, resources, workers)
        return candidates[assignment.index], assignment.reason, ticket

    def _candidates(self, *, whole: bool) -> list[_Stand]:
        at = self._at.station
        found = [stand for stand in self._stands if stand.station.healthy()]
        if not whole:
            found = [stand for stand in found if stand.station.vocabulary == at.vocabulary]
        return found or [self._at]

    def _follow(self, carried: Carried) -> bool:
        """Note what the last segment wrote; whether it ends with a whole character."""
        station, ids = self._at.station, carried.memory.archive.ids
        text = self._decoder.decode(b"".join(map(station.context.token_bytes, ids[self._read :])))
        self._read = len(ids)
        for vocabulary, texts in self._since.items():
            if vocabulary != station.vocabulary:
                texts.append(text)
        return not (self._decoder.getstate()[0] or carried.state.undecoded)

    def _carry(self, carried: Carried, stand: _Stand) -> Carried:
        old, new = self._at.station.vocabulary, stand.station.vocabulary
        if new == old:
            return carried
        self._left[old] = carried
        left = self._left.get(new) or stand.chain.begin()
        texts, self._since[new] = self._since[new], []
        carried = translated(carried, left, texts, stand.station.following, stand.station.context.token_bytes)
        self._read = carried.memory.archive.total
        return carried


def _able(stations: Sequence[Station], chain: Chain, *, one_vocabulary: bool) -> tuple[str, Callable[[Station], bool]]:
    """Why the chain is bound, "" if it is not, and which stations are left to it."""
    home = stations[0]
    if chain.policy.budget is None:
        return f"residency {chain.policy.name} stays with one worker", lambda station: station is home or station.alike
    if one_vocabulary or _names_ids(chain.turn):
        return "its ids are of one vocabulary", lambda station: station.vocabulary == home.vocabulary
    return "", lambda station: True


def _names_ids(turn: Turn) -> bool:
    """Whether the client said or is told something in token ids, which mean something in one vocabulary only."""
    sampling = turn.sampling
    named = turn.prompt or turn.stop_ids or sampling.logit_bias or turn.grammar  # which is compiled for one vocabulary
    return bool(named) or sampling.logprobs is not None


def _stand(index: int, station: Station, home: Station, chain: Chain) -> _Stand | None:
    """The station with its view of the chain; None where the turn could not run there.

    Where the same bits are computed it is the chain itself: an answer from there is as exact as the first worker's.
    """
    capabilities = station.backend.capabilities()
    if station is not home and not station.alike:
        try:
            check_steering(chain.turn, capabilities.steering)
            if station.vocabulary == home.vocabulary:
                shared = replace(station.context, encode=chain.context.encode)
                chain = replace(chain, context=shared, capabilities=capabilities)
                chain.check()
            else:
                chain = Chain.of(_as_text(chain.turn), station.context, capabilities)
        except InvalidRequest:
            return None
    budget = chain.policy.budget
    beside = 0 if budget is None else budget.carried + budget.cap
    return _Stand(index, station, chain, max(1, chain.head_tokens + beside))


def _as_text(turn: Turn) -> Turn:
    """The turn for another vocabulary: ids that messages were generated as mean nothing there."""
    if not any(message.ids for message in turn.messages):
        return turn
    return replace(turn, messages=tuple(replace(message, ids=()) for message in turn.messages))


def _asked_density(chain: Chain) -> float:
    """Density of the question: before the first segment there is nothing else to go by."""
    question = chain.prompting.question
    _, reading = Reader(0, "user").feed(question, 0, final=True)
    return estimate_density(question, len(reading.facts))
