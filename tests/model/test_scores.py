"""Log-probabilities of a prompt's own tokens: computed in the plan, beside whatever else runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ghostkv.errors import ContextLengthExceeded
from ghostkv.request import FinishReason, PromptScores, SegmentRequest, Token
from model.lab import Lab, request, score, teacher_forced

IDS = [3 + (7 * i + i * i) % 250 for i in range(150)]


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def lab(small_hf: Path, request: pytest.FixtureRequest) -> Lab:
    return Lab(small_hf, request.param)


def scoring(name: str, ids: list[int], start: int = 1, best: int = 0, tokens: int = 0) -> SegmentRequest:
    return replace(request(name, ids, tokens), scores=PromptScores(start, best))


def test_they_are_those_of_the_logits(lab: Lab) -> None:
    logits = teacher_forced(lab.runner(10), IDS, np.arange(10, dtype=np.int32)).double().log_softmax(-1)
    found = lab.engine().run([scoring("a", IDS, best=5)]).scored["a"]
    assert [token.id for token in found] == IDS[1:]
    for token, row in zip(found, logits, strict=False):
        assert token.logprob == pytest.approx(float(row[token.id]), abs=1e-5)
        order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))[:5]
        assert [token_id for token_id, _ in token.top] == order
        assert [value for _, value in token.top] == pytest.approx(row[order].tolist(), abs=1e-5)


@pytest.mark.parametrize("step_tokens", [24, 29, 64, 192])
def test_bits_do_not_depend_on_chunks_and_neighbours(lab: Lab, step_tokens: int) -> None:
    alone = lab.engine().run([scoring("a", IDS)]).scored["a"]
    assert [token.logprob for token in alone] == score(lab.runner(10), IDS, 1, np.arange(10, dtype=np.int32))
    noise = [request(f"n{i}", IDS[i : i + 40 - 3 * i], 30) for i in range(8)]
    others = [scoring("b", IDS[10:]), *noise, scoring("a", IDS), scoring("c", IDS[:90], tokens=12)]
    crowd = lab.engine(step_tokens=step_tokens).run(others, every=2)
    assert crowd.scored["a"] == alone
    assert crowd.scored["c"] == alone[:89]
    plain = lab.engine().run([request("c", IDS[:90], 12), *noise])
    assert {name: crowd.ids[name] for name in plain.ids} == plain.ids


def test_one_best_is_the_first_of_several(lab: Lab) -> None:
    one, five = (lab.engine().run([scoring("a", IDS, best=best)]).scored["a"] for best in (1, 5))
    assert [token.top[0] for token in one] == [token.top[0] for token in five]


def test_a_cached_prefix_is_used_up_to_the_first_score(lab: Lab) -> None:
    engine = lab.engine()
    whole = engine.run([scoring("a", IDS)]).scored["a"]
    again = engine.run([scoring("b", IDS, 100), scoring("c", IDS, 1)])
    assert again.scored["b"] == whole[99:]
    assert [again.finish[name].usage.cached_tokens for name in "bc"] == [96, 0]


@pytest.mark.parametrize(("count", "tokens"), [(1, 0), (1, 3), (2, 0), (16, 0), (17, 1)])
def test_short_prompts(lab: Lab, count: int, tokens: int) -> None:
    run = lab.engine().run([scoring("a", IDS[:count], tokens=tokens)])
    assert len(run.scored["a"]) == count - 1
    assert (len(run.ids["a"]), run.finish["a"].reason) == (tokens, FinishReason.LENGTH)
    assert run.finish["a"].usage.prompt_tokens == count


def test_a_prompt_that_is_only_read_fills_the_cache_and_gives_nothing(lab: Lab) -> None:
    engine = lab.engine()
    read = engine.run([request("a", IDS, 0)])
    assert (read.ids["a"], read.text["a"], read.scored["a"]) == ([], "", [])
    assert engine.stats.generated_tokens == 0
    assert engine.run([request("b", IDS, 1)]).finish["b"].usage.cached_tokens == 144


def test_the_last_token_of_what_is_only_read_needs_a_slot(lab: Lab) -> None:
    assert len(lab.engine(blocks=4).run([scoring("a", IDS[:64])]).scored["a"]) == 63
    for tokens, longest in ((0, 64), (1, 64)):
        engine = lab.engine(blocks=4)
        engine.run([request("a", IDS[:longest], tokens)])
        with pytest.raises(ContextLengthExceeded):
            engine.run([request("b", IDS[: longest + 1], tokens)])


def test_a_cancelled_scoring_leaves_nothing(lab: Lab) -> None:
    engine = lab.engine(step_tokens=24)
    engine.add(scoring("a", IDS))
    tokens: list[Token] = [token for delta in engine.step() for token in delta.prompt]
    assert len(tokens) == 24
    engine.cancel("a")
    assert engine.idle
    engine.scheduler.check_integrity()
    assert engine.scheduler.occupancy().live_blocks == 0
