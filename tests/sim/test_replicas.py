"""Several engines behind a router: conversations that come back, and what each router makes of them."""

from __future__ import annotations

import random

import pytest

from ghostkv.engine.admission import Limits
from ghostkv.residency import policy
from ghostkv.routing import names, router
from ghostkv.sim.replicas import Replicas, Routed, Visit
from ghostkv.sim.simulation import Setup

SETUP = Setup(limits=Limits(4096, max_sequences=16, step_tokens=256, max_waiting=1000))


def talks(seed: int, sessions: int = 12, turns: int = 4) -> list[Visit]:
    """Conversations, each turn of which begins with all that was said in it before."""
    rng, found = random.Random(seed), []
    for session in range(sessions):
        said: list[int] = []
        for turn in range(turns):
            said += [rng.randrange(9999) for _ in range(rng.randrange(60, 200))]
            prompt = len(said)
            said += [rng.randrange(9999) for _ in range(rng.randrange(5, 20))]
            found.append(
                Visit(session, tuple(said), prompt, rng.uniform(0, 8) if turn else session * 0.2, b"%d" % session)
            )
    return found


def routed(name: str, visits: list[Visit], residency: str = "full", replicas: int = 4) -> Routed:
    return Replicas(replicas, 400, router(name), policy(residency), SETUP).run(visits)


def test_one_replica_is_served_alike_by_every_router() -> None:
    visits = talks(1)
    one, *others = [routed(name, visits, replicas=1) for name in names()]
    assert len(one.served) == len(visits) and one.imbalance == 1
    assert all(other.served == one.served for other in others)


def test_all_are_served_once_and_what_is_found_was_said_before() -> None:
    visits = talks(2)
    most = sum(visit.prompt for visit in visits)
    again = sum(
        len(visits[i - 1].ids) for i in range(len(visits)) if visits[i].session == visits[max(0, i - 1)].session
    )
    for name in names():
        found = routed(name, visits)
        assert len(found.served) == len(visits) and found.prompt_tokens == most
        assert 0 <= found.cached_tokens <= again
        assert found.computed_tokens == most - found.cached_tokens


def test_affinity_finds_what_turns_about_miss() -> None:
    """With room for everything, cache-first finds all full blocks of the last turn; round robin seldom meets them."""
    visits = talks(3)
    first, turns, both = (routed(name, visits) for name in ("cache_first", "round_robin", "lmetric"))
    assert first.cached_tokens > 2 * turns.cached_tokens
    assert both.cached_tokens > 2 * turns.cached_tokens
    assert both.mean_first_token_s < 0.8 * turns.mean_first_token_s


def test_a_burst_is_spread_although_no_engine_has_begun() -> None:
    visits = [Visit(i, tuple(range(i * 1000, i * 1000 + 210)), 200, 0.0, b"%d" % i) for i in range(16)]
    for name in ("least_load", "lmetric"):
        assert routed(name, visits).imbalance == pytest.approx(1, abs=0.02)


def test_segments_are_placed_one_by_one() -> None:
    """Answers of 600 tokens in segments: more is prefilled than was asked, and all come to their end."""
    visits = [Visit(i, tuple(range(i * 1000, i * 1000 + 700)), 100, 0.1 * i, b"%d" % i) for i in range(8)]
    found = routed("lmetric", visits, "segment")
    assert len(found.served) == 8 and found.prompt_tokens > 8 * 100 * 3
    assert found.cached_tokens > 8 * 80  # heads, of segments that stayed or came back


def test_what_no_pool_holds_is_refused_and_its_session_goes_on() -> None:
    large = Visit(0, tuple(range(7000)), 6900, 0.0, b"")
    found = routed("lmetric", [large, Visit(0, tuple(range(100)), 90, 1.0, b"")])
    assert (found.refused, len(found.served)) == (1, 1)
