"""Structured answers of real models: how a masked draw chooses, what batches change, and whether JSON is valid."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.model.sampler import Sampler
from ghostkv.request import Bitmask, FinishReason, Sampling, SegmentRequest
from ghostkv.step import Draw
from model.lab import GREEDY, Lab, request, same_bits

PROMPT = "Once upon a time there was a ship with three masts, and its captain said:"


def bits(ids: list[int], size: int) -> Bitmask:
    flags = np.zeros(-(-size // 32) * 32, dtype=np.bool_)
    flags[ids] = True
    return np.packbits(flags, bitorder="little").view("<u4")


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(),
        Sampling(temperature=0.5, top_k=3),
        Sampling(top_p=0.6, min_p=0.01),
        Sampling(top_k=100),
        Sampling(temperature=0.0, repetition_penalty=1.3, presence_penalty=0.5),
    ],
)
@pytest.mark.parametrize("kept", [1, 2, 40, 999])
def test_a_masked_draw_is_a_draw_over_a_vocabulary_of_the_allowed_ids(sampling: Sampling, kept: int) -> None:
    random = np.random.default_rng(kept)
    size = 1000
    scores = random.normal(0, 3, size).astype(np.float32)
    allowed = sorted(random.choice(size, kept, replace=False).tolist())
    small = {old: new for new, old in enumerate(allowed)}
    seen = frozenset(random.choice(size, 300, replace=False).tolist())
    for uniform in (0.0, 0.3, 0.77, 0.999999):
        counts = dict.fromkeys(sorted(seen), 2) if sampling.penalised else None
        draw = Draw(sampling, uniform, (), seen, counts, bits(allowed, size))
        fewer = {small[token]: 2 for token in sorted(seen) if token in small} if counts else None
        alone = Draw(sampling, uniform, (), frozenset(small[token] for token in seen if token in small), fewer)
        (token,) = Sampler(size, 1).sample(torch.from_numpy(scores.copy())[None], [draw])
        (other,) = Sampler(kept, 1).sample(torch.from_numpy(scores[allowed].copy())[None], [alone])
        assert token.id == allowed[other.id]


def test_log_probabilities_are_those_of_the_unmodified_distribution() -> None:
    scores = np.random.default_rng(1).normal(0, 3, 500).astype(np.float32)
    exact = scores - np.log(np.exp(scores.astype(np.float64)).sum())
    draw = Draw(Sampling(logprobs=2, logit_bias=((7, 50.0), (11, 100.0))), 0.5, allowed=bits([7, 8], 500))
    (token,) = Sampler(500, 1).sample(torch.from_numpy(scores)[None], [draw])
    assert token.id == 7  # the bias counts among the allowed ids, and brings back no other
    assert token.logprob == pytest.approx(exact[7], abs=1e-4)
    best = np.argsort(-exact)[:2].tolist()
    assert [token_id for token_id, _ in token.top] == best  # though neither may be chosen
    assert not {7, 8} & set(best)


def test_rows_beyond_the_vocabulary_are_never_chosen() -> None:
    scores = np.zeros(200, dtype=np.float32)
    scores[150:] = 9.0
    for sampling in (GREEDY, Sampling()):
        draw = Draw(sampling, 0.9, allowed=bits(list(range(64)), 64))
        (token,) = Sampler(200, 1).sample(torch.from_numpy(scores.copy())[None], [draw])
        assert token.id < 64


@pytest.fixture(scope="module")
def lab(small_hf: Path) -> Lab:
    return Lab(small_hf, torch.float32, threads=1)


SHIP = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "masts": {"type": "integer", "minimum": 1, "maximum": 4},
        "flags": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "masts", "flags"],
    "additionalProperties": False,
}


def structured(lab: Lab) -> list[SegmentRequest]:
    grammars = lab.tokenizer.grammars
    ids = lab.tokenizer.encode(PROMPT)
    found = [
        grammars.json_schema(SHIP),
        grammars.regex("(one|two|three)( (one|two|three)){5,40}"),
        grammars.json_object(),
    ]
    warm = Sampling(temperature=1.0, top_p=0.9, seed=4, repetition_penalty=1.2, logprobs=2)
    samplings = [GREEDY, warm, Sampling(seed=8)]
    return [
        replace(request(f"s{i}", ids[i:], 40, sampling), grammar=grammar)
        for i, (grammar, sampling) in enumerate(zip(found, samplings, strict=True))
    ]


def plain(lab: Lab) -> list[SegmentRequest]:
    ids = lab.tokenizer.encode(PROMPT * 2)
    return [request(f"p{i}", ids[i * 7 :], 24, replace(GREEDY, temperature=i % 2 * 0.8, seed=i)) for i in range(4)]


def test_batches_chunks_and_neighbours_change_neither_structured_nor_other_answers(lab: Lab) -> None:
    mine, others = structured(lab), plain(lab)
    alone = {one.id: lab.engine().run([one]) for one in [*mine, *others]}
    for together in (
        lab.engine().run([*mine, *others]),
        lab.engine(step_tokens=24, sequences=4).run([*others, *reversed(mine)]),
        lab.engine(step_tokens=25, sequences=16).run([*mine, *others], every=3),
    ):
        for one in [*mine, *others]:
            assert together.ids[one.id] == alone[one.id].ids[one.id]
            assert together.text[one.id] == alone[one.id].text[one.id]
            assert same_bits(together.rows(one.id), alone[one.id].rows(one.id))


def test_threads_do_not_change_a_structured_answer(lab: Lab, small_hf: Path) -> None:
    double = Lab(small_hf, torch.float32, threads=2)
    assert lab.engine().run(structured(lab)).ids == double.engine().run(structured(double)).ids


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """JSON schemas whose instances are short."""
    names = st.text('abé"\\ ', min_size=1, max_size=4)
    plain_values = st.none() | st.booleans() | st.integers(-99, 99) | st.text('xyé"\\', max_size=3)
    leaves: st.SearchStrategy[Any] = (
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}])
        | st.tuples(st.integers(-500, 500), st.integers(0, 700)).map(
            lambda both: {"type": "integer", "minimum": both[0], "maximum": both[0] + both[1]}
        )
        | st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
            lambda both: {"type": "string", "minLength": both[0], "maxLength": both[0] + both[1]}
        )
        | st.sampled_from(["^[a-c]{1,4}$", "^(no|yes)$", "^\\d{2}-\\d{2}$"]).map(
            lambda p: {"type": "string", "pattern": p}
        )
        | st.sampled_from(["date", "time", "ipv4", "uuid"]).map(lambda name: {"type": "string", "format": name})
        | st.lists(plain_values, min_size=1, max_size=4, unique_by=repr).map(lambda values: {"enum": values})
        | plain_values.map(lambda value: {"const": value})
    )

    def deeper(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        arrays = st.tuples(inner, st.integers(0, 2), st.integers(0, 1)).map(
            lambda of: {"type": "array", "items": of[0], "minItems": of[1], "maxItems": of[1] + of[2]}
        )
        objects = st.dictionaries(names, inner, max_size=3).flatmap(
            lambda properties: st.sets(st.sampled_from(sorted(properties)) if properties else st.nothing()).map(
                lambda required: {
                    "type": "object",
                    "properties": properties,
                    "required": sorted(required),
                    "additionalProperties": False,
                }
            )
        )
        return arrays | objects | st.lists(inner, min_size=1, max_size=3).map(lambda several: {"anyOf": several})

    return st.recursive(leaves, deeper, max_leaves=5)


ENDED = {"stop": 0, "length": 0}


@settings(max_examples=12)
@given(st.lists(schemas(), min_size=12, max_size=12), st.integers(0, 2**32))
def test_what_a_random_model_says_under_a_schema_is_valid(lab: Lab, wanted: list[dict[str, Any]], seed: int) -> None:
    ids = lab.tokenizer.encode(PROMPT)
    asked = [
        replace(
            request(f"r{i}", ids[:16], 300, Sampling(seed=seed)), grammar=lab.tokenizer.grammars.json_schema(schema)
        )
        for i, schema in enumerate(wanted)
    ]
    run = lab.engine().run(asked)
    for one, schema in zip(asked, wanted, strict=True):
        reason = run.finish[one.id].reason
        ENDED[reason.value] += 1  # any other is an error
        if reason is FinishReason.STOP:
            jsonschema_rs.validate(schema, json.loads(run.text[one.id]))


def test_most_of_them_came_to_their_end() -> None:
    assert ENDED["stop"] > 10 * ENDED["length"]
