"""Several workers that share the segments of every turn. To its users a fleet is its first worker.

A turn is checked and counted as the first worker sees it; what runs where, and why, is in the segments' records. The
choice looks at what is free, so under load the text of a turn may differ, and one that left the first worker for one
that computes other bits is never `exact`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial

from ghostkv.backends.base import Load
from ghostkv.errors import InvalidRequest
from ghostkv.routing import DEFAULT_ROUTER, Switch, router
from ghostkv.session.chain import Closed
from ghostkv.session.crossing import Crossing, Station
from ghostkv.session.fit import pool_tokens
from ghostkv.session.loop import run
from ghostkv.session.planned import run_plan
from ghostkv.session.start import FROM_THE_START, Start
from ghostkv.session.turn import Event, Turn
from ghostkv.session.worker import Worker


@dataclass(frozen=True, slots=True)
class Fleet(Worker):
    """Workers behind the interface of one."""

    stations: tuple[Station, ...] = ()
    others: tuple[Worker, ...] = ()
    switch: Switch = field(default_factory=lambda: Switch(router(DEFAULT_ROUTER), 1))

    @classmethod
    def of(cls, workers: Sequence[Worker], by: str = DEFAULT_ROUTER) -> Worker:
        """A fleet, whose `close` closes all; of one worker, that worker itself.

        The router called `by` chooses among equal workers. Raises ConfigError where there is none of that name.
        """
        switch = Switch(router(by), len(workers))
        first, *others = workers
        if not others:
            return first
        ranks = sorted({worker.strength for worker in workers})
        stations = tuple(
            _station(worker, name, ranks.index(worker.strength), first)
            for worker, name in zip(workers, _names(workers), strict=True)
        )

        def close() -> None:
            for worker in workers:
                worker.close()

        own = {field.name: getattr(first, field.name) for field in fields(Worker)}
        manifest = "+".join(worker.manifest for worker in workers)
        return cls(
            **(own | {"manifest": manifest, "close": close}), stations=stations, others=tuple(others), switch=switch
        )

    def members(self) -> Mapping[str, Worker]:
        """See Worker; the names are those in the segments' records."""
        return dict(zip((station.name for station in self.stations), (self, *self.others), strict=True))

    def checked(self, turn: Turn) -> Turn:
        """See Worker."""
        settled = Worker.checked(self, turn)
        if turn.messages:
            for worker in self.others:
                with suppress(InvalidRequest):  # it will not be given any segment
                    worker.prompt_tokens(settled)  # rendered here, off the server's event loop, and kept
        return settled

    def run(
        self, turn: Turn, closed: Closed = lambda _: None, start: Start = FROM_THE_START
    ) -> AsyncGenerator[Event, None]:
        """See Worker. The nodes of a plan stay with workers of one vocabulary, since they continue each other's ids."""
        if turn.plan is None:
            return run(self.backend, turn, self.context, partial(Crossing, self.stations, self.switch), closed, start)
        seats = partial(Crossing, self.stations, self.switch, one_vocabulary=True)
        return run_plan(self.backend, turn, self.context, seats, closed)


def _station(worker: Worker, name: str, rank: int, first: Worker) -> Station:
    own, capabilities = worker.context, worker.backend.capabilities()
    context = replace(
        first.context,
        template=own.template,
        tool_template=own.tool_template,
        encode=own.encode,
        token_bytes=own.token_bytes,
        eos_ids=own.eos_ids,
    )
    return Station(
        name=name,
        strength=rank,
        backend=worker.backend,
        context=first.context if worker is first else context,
        vocabulary=(worker.tokenizer.digest, worker.template),
        following=partial(worker.tokenizer.encode, opening=False),
        load=worker.load or (lambda: Load(pool_tokens(capabilities), 0)),
        healthy=worker.healthy,
        alike=worker.manifest == first.manifest,
        found=worker.found or (lambda ids, domain: 0),
    )


def _names(workers: Sequence[Worker]) -> list[str]:
    """Model and dtype of each; those that are alike are numbered."""
    plain = [f"{worker.name}:{worker.config.dtype}" for worker in workers]
    seen, counts = Counter[str](), Counter(plain)
    names = []
    for name in plain:
        seen[name] += 1
        names.append(f"{name}#{seen[name]}" if counts[name] > 1 else name)
    return names
