"""All interleavings up to a bound, see `exhaustive`; and each rule that is broken on purpose is found by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import exhaustive
from exhaustive import ACCIDENTS, Explorer, Violation
from ghostkv.engine.scheduler import Scheduler
from ghostkv.kv.pool import BlockPool
from ghostkv.kv.prefix_index import Node, PrefixIndex
from ghostkv.request import SegmentRequest
from ghostkv.session import fork
from ghostkv.session.start import Start
from ghostkv.step import BLOCK_TOKENS


@pytest.fixture(scope="module")
def explorer(small_hf: Path) -> Explorer:
    return Explorer(small_hf)


def test_every_interleaving_gives_the_undisturbed_answers(explorer: Explorer) -> None:
    """Block identity, next logits and no leak, after each action; and the states met are those it is about."""
    explorer.seen.clear()
    states, complete = explorer.explore(accidents=1)
    assert complete and states > 500
    met = explorer.seen
    for name in (*(accident.partition(" ")[0] for accident in ACCIDENTS), "restore", "step", "ended"):
        assert met[name] > 10, name
    assert met["keep"] > 50 and met["flush policy"] > 50 and met["flush memory"] > 5 and met["hits"] > 20


def without_the_first_token(index: PrefixIndex, domain: str, tokens: Sequence[int], limit: int) -> list[Node]:
    """A block's identity that leaves the prompt's first token out: all bookkeeping stays in order."""
    firsts = [prompt[0] for prompt in exhaustive.PROMPTS.values()]
    return max((MATCH(index, domain, (first, *tokens[1:]), limit) for first in firsts), key=len)


def held_for_ever(scheduler: Scheduler, sequence: Any, *rest: Any) -> Any:
    """A finish that forgets to release."""
    pool, scheduler.pool = scheduler.pool, Deaf(scheduler.pool)  # type: ignore[assignment]
    try:
        return FINISH(scheduler, sequence, *rest)
    finally:
        scheduler.pool = pool


class Deaf:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def release(self, allocation: object) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


def still_found(pool: BlockPool, block: int) -> None:
    """An eviction after which the index still knows the block."""
    pool._cached.pop(block, None)
    pool._pins.evict(block)


def one_token_short(start: Start, request: SegmentRequest) -> SegmentRequest:
    """What is known of the open segment, without its last token."""
    opened = OPENED(start, request)
    return opened if start.state is None else replace(opened, prompt=opened.prompt[:-1])


def latest(capsule: Any, *_: Any) -> Any:
    """What the last flush left, whichever boundary is forked at."""
    return capsule.carried


FINISH, OPENED, MATCH = Scheduler._finish, Start.opened, PrefixIndex.match
MUTATIONS: dict[str, tuple[object, str, Callable[..., Any], str]] = {
    "a block's identity": (PrefixIndex, "match", without_the_first_token, "next logits of b after 46 tokens"),
    "a release": (Scheduler, "_finish", held_for_ever, "blocks are referenced while no request runs"),
    "an eviction": (BlockPool, "_evict", still_found, "would be evicted before its child"),
    "what a restore goes on from": (Start, "opened", one_token_short, "elsewhere than it would be"),
    "what a fork goes on from": (fork, "_carried", latest, "its state is that after 1 segments"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_found(explorer: Explorer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, broken, said = MUTATIONS[name]
    monkeypatch.setattr(owner, attribute, broken)
    with pytest.raises(Violation, match=said) as found:
        explorer.explore(accidents=1)
    assert "after: admit" in str(found.value)


def test_what_is_explored_is_what_was_meant() -> None:
    """Two prompts whose second blocks are equal after different first ones, and a pool that not both can grow in."""
    one, other = exhaustive.PROMPTS.values()
    size, most = BLOCK_TOKENS, 4
    assert one[:size] != other[:size] and one[size : 2 * size] == other[size : 2 * size]
    needed = [-(-(len(prompt) + most - 1) // size) for prompt in (one, other)]
    assert max(needed) <= exhaustive.BLOCKS < sum(needed)
