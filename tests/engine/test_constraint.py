"""Requests under a grammar, over scripted tokens: how they end, what min_tokens means, and what others notice."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import pytest

from fakes import FixedResidency, ScriptedRunner, StringRule, byte_tokenizer, history_script
from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.speculation import Speculation
from ghostkv.errors import InvalidRequest
from ghostkv.kv.pool import BlockPool
from ghostkv.protocol.rules import EndOfSequence, FixedBoundary
from ghostkv.request import (
    Decision,
    Delta,
    FinishReason,
    GenerationState,
    Grammar,
    Rule,
    Sampling,
    SegmentRequest,
)
from ghostkv.residency import policy
from ghostkv.step import Draw
from ghostkv.text.detokenizer import Detokenizer
from grammars import choose, ids_of

TOKENIZER = byte_tokenizer()
GRAMMARS = TOKENIZER.grammars
END = TOKENIZER.eos_ids[0]
ENDS: tuple[Rule, ...] = (EndOfSequence(frozenset(TOKENIZER.eos_ids)),)
GREEDY = Sampling(temperature=0.0, terminators=TOKENIZER.eos_ids)

Choose = Callable[[tuple[int, ...], Draw], int]


class Bench:
    def __init__(self, choose: Choose, blocks: int = 64, speculation: Speculation | None = None) -> None:
        self.runner = ScriptedRunner(blocks, choose)
        self.pool = BlockPool(blocks)
        scheduler = Scheduler(self.pool, Limits(512), Detokenizer(TOKENIZER), speculation)
        self.engine = Engine(scheduler, self.runner, MonotonicClock())

    def run(self, *requests: SegmentRequest) -> list[Delta]:
        for request in requests:
            self.engine.add(request)
        deltas: list[Delta] = []
        while not self.engine.idle:
            deltas += self.engine.step()
        self.engine.step()  # checks the books
        assert self.pool.referenced == 0
        return deltas

    def draws(self, name: str = "r") -> list[Draw]:
        return [draw for plan in self.runner.plans for row in plan.rows if row.request_id == name for draw in row.draws]


def request(
    grammar: Grammar | None,
    name: str = "r",
    *,
    tokens: int = 40,
    sampling: Sampling = GREEDY,
    rules: tuple[Rule, ...] = ENDS,
) -> SegmentRequest:
    state = GenerationState(rules=rules)
    return SegmentRequest(name, tuple(name.encode()), sampling, state, policy("full"), tokens, grammar=grammar)


def spelling(text: str) -> Choose:
    """Token n of the output is byte n of `text`; requests are one token long."""
    data = text.encode()
    return lambda history, draw: data[len(history) - 1]


def end_of(deltas: Iterable[Delta], name: str = "r") -> tuple[str, FinishReason, str]:
    mine = [delta for delta in deltas if delta.request_id == name]
    finish = mine[-1].finish
    assert finish is not None
    return "".join(delta.text for delta in mine), finish.reason, finish.note


def test_an_answer_stops_where_nothing_can_follow_and_needs_no_end_token() -> None:
    bench = Bench(spelling("yes!!!"))
    deltas = bench.run(request(GRAMMARS.regex("(yes|no)")))
    assert end_of(deltas) == ("yes", FinishReason.STOP, "")
    assert [token.id for delta in deltas for token in delta.tokens] == list(b"yes")


def test_at_its_last_token_a_complete_answer_stops_and_another_is_cut() -> None:
    assert end_of(Bench(spelling("yes")).run(request(GRAMMARS.regex("yes"), tokens=3)))[1] is FinishReason.STOP
    assert end_of(Bench(spelling("yes")).run(request(GRAMMARS.regex("yes!"), tokens=3)))[1] is FinishReason.LENGTH


def test_the_end_token_is_allowed_where_the_text_matches_and_ends_the_answer() -> None:
    bench = Bench(lambda history, draw: END if len(history) == 3 else ord("a"))
    assert end_of(bench.run(request(GRAMMARS.regex("(aa)*")))) == ("aa", FinishReason.STOP, "")
    allowed = [ids_of(draw.allowed) for draw in bench.draws() if draw.allowed is not None]
    assert [END in ids for ids in allowed] == [True, False, True]


def test_a_dead_end_says_why_and_frees_everything() -> None:
    grammar = GRAMMARS.lark('start: "x" A\nA: /a+/ & ~/a+/')
    text, reason, note = end_of(Bench(spelling("x")).run(request(grammar)))
    assert (text, reason) == ("x", FinishReason.DEAD_END)
    assert note


def test_a_runner_that_does_not_obey_ends_that_request_alone() -> None:
    def script(history: tuple[int, ...], draw: Draw) -> int:
        return ord("z") if draw.allowed is not None else ord("a")

    deltas = Bench(script).run(request(GRAMMARS.regex("aaa")), request(None, "s", tokens=5))
    assert end_of(deltas)[1] is FinishReason.DEAD_END
    assert end_of(deltas, "s")[:2] == ("aaaaa", FinishReason.LENGTH)


def test_min_tokens_masks_the_end_but_gives_way_to_a_grammar_that_leaves_nothing_else() -> None:
    sampling = replace(GREEDY, min_tokens=6)
    bench = Bench(lambda history, draw: choose(draw, 0))
    _, reason, _ = end_of(bench.run(request(GRAMMARS.regex("a{2}b*"), tokens=9, sampling=sampling)))
    assert reason is FinishReason.LENGTH
    assert all(END not in ids_of(draw.allowed) for draw in bench.draws()[:6] if draw.allowed is not None)
    assert [END in ids_of(draw.allowed) for draw in bench.draws()[6:] if draw.allowed is not None] == [True] * 3
    assert end_of(Bench(spelling("ab")).run(request(GRAMMARS.regex("ab"), sampling=sampling)))[:2] == ("ab", "stop")
    # An end id that is text: the grammar leaves nothing else, so it is chosen early.
    ends = (EndOfSequence(frozenset({ord("b")})),)
    sampling = replace(sampling, terminators=(ord("b"),))
    assert end_of(Bench(spelling("ab")).run(request(GRAMMARS.regex("abc"), sampling=sampling, rules=ends)))[1] == "stop"


def test_stop_strings_end_a_structured_answer_too() -> None:
    rules = (StringRule("lo"), *ENDS)
    assert end_of(Bench(spelling("hello!")).run(request(GRAMMARS.regex("hello!"), rules=rules))) == ("hel", "stop", "")


def test_boundaries_are_kept_inside_a_structure() -> None:
    held = FixedResidency(Decision.FLUSH)  # a policy that flushes wherever it is asked
    asked = replace(request(GRAMMARS.regex("[ab]{30}"), rules=(FixedBoundary(4), *ENDS)), residency=held)
    deltas = Bench(lambda history, draw: choose(draw, len(history))).run(asked)
    assert end_of(deltas)[1] is FinishReason.STOP
    assert {delta.boundary.decision for delta in deltas if delta.boundary is not None} == {Decision.KEEP}


@pytest.mark.parametrize("name", ["segment", "sink_window"])
def test_a_policy_that_may_let_go_inside_a_structure_is_refused(name: str) -> None:
    asked = replace(request(GRAMMARS.regex("[ab]{300}"), tokens=300), residency=policy(name))
    with pytest.raises(InvalidRequest, match="inside a structure"):
        Bench(spelling("")).engine.add(asked)


def test_a_cancelled_structure_frees_everything() -> None:
    bench = Bench(lambda history, draw: choose(draw, 0))
    bench.engine.add(request(GRAMMARS.regex("[ab]{300}"), tokens=300))
    for _ in range(5):
        bench.engine.step()
    delta = bench.engine.cancel("r")
    assert delta is not None and delta.finish is not None
    assert delta.finish.reason is FinishReason.CANCELLED
    assert bench.engine.idle
    assert bench.pool.referenced == 0


class Prophet:
    """Guesses what a request is going to say, with every fifth byte wrong."""

    def __init__(self, said: tuple[int, ...]) -> None:
        self._said = said

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        ahead = range(len(tokens), min(len(self._said), len(tokens) + limit))
        return tuple(self._said[at] ^ (at % 5 == 0) for at in ahead)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("min_tokens", [0, 12])
def test_guesses_change_neither_masks_nor_ends(seed: int, min_tokens: int) -> None:
    """The script answers with every mask, so a wrong mask after an accepted guess gives another token."""

    def script(history: tuple[int, ...], draw: Draw) -> int:
        assert draw.allowed is not None
        return choose(draw, zlib.crc32(repr((history, draw.uniform, draw.allowed.tolist(), seed)).encode()))

    texts = (GRAMMARS.json_object(), GRAMMARS.regex("(ab|cd*)+e?"), GRAMMARS.lark('start: "x" A\nA: /a{9}/ & ~/a+/'))
    for grammar in texts:
        asked = request(grammar, sampling=Sampling(seed=seed, min_tokens=min_tokens, terminators=TOKENIZER.eos_ids))
        plain = Bench(script).run(asked)
        said = (*asked.prompt, *(token.id for delta in plain for token in delta.tokens))
        bench = Bench(script, speculation=Speculation(partial(Prophet, said)))
        assert [timeless(delta) for delta in bench.run(asked)] == [timeless(delta) for delta in plain]
        assert bench.engine.stats.accepted_tokens > 0 or len(said) < 6


def timeless(delta: Delta) -> Delta:
    if delta.finish is None:
        return delta
    usage = replace(delta.finish.usage, queue_s=0.0, prefill_s=0.0, decode_s=0.0)
    return replace(delta, finish=replace(delta.finish, usage=usage))


def test_structured_neighbours_change_nothing_for_others() -> None:
    def script(history: tuple[int, ...], draw: Draw) -> int:
        if draw.allowed is not None:
            return choose(draw, sum(history))
        return history_script(256)(history, draw)

    others = [
        request(None, f"n{i}", sampling=replace(GREEDY, temperature=1.0, seed=i, repetition_penalty=1.1))
        for i in range(4)
    ]
    grammars = [GRAMMARS.json_object(), GRAMMARS.regex("[ab]{2,90}"), GRAMMARS.lark('start: "x"+ "y"')]
    structured = [request(grammar, f"s{i}") for i, grammar in enumerate(grammars)]
    alone = {one.id: end_of(Bench(script).run(one), one.id) for one in [*others, *structured]}
    mixed = [*others, *structured]
    random.Random(1).shuffle(mixed)
    together = Bench(script).run(*mixed)
    assert {one.id: end_of(together, one.id) for one in mixed} == alone
