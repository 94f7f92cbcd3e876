"""The numeric contract under speculation: every logits row that chose a token, bit for bit, and every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from checkpoints import write_hf_checkpoint
from ghostkv.engine.drafter import Drafter, Drafts, PromptLookup
from ghostkv.engine.speculation import Speculation
from ghostkv.request import Sampling, SegmentRequest
from model.lab import GREEDY, Lab, Run, request, same_bits

TEXT = "the fog came in and the fog went out and the harbour master counted 14 ships, and then the fog came in again, "
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": Sampling(temperature=0.7, top_p=0.9, seed=3),
    "penalised": Sampling(temperature=0.9, seed=4, repetition_penalty=1.2, frequency_penalty=0.4, presence_penalty=0.1),
    "biased": Sampling(temperature=0.0, logprobs=3, logit_bias=((7, 2.5), (40, -9.0)), min_tokens=8, terminators=(2,)),
}
MODELS: list[tuple[str, torch.dtype, dict[str, Any]]] = [
    ("smollm2", torch.bfloat16, {}),
    ("smollm2", torch.int8, {}),
    ("odd", torch.float32, {"hidden": 72, "heads": 3, "kv_heads": 3, "intermediate": 100, "layers": 3}),
    ("odd", torch.bfloat16, {"hidden": 72, "heads": 3, "kv_heads": 3, "intermediate": 100, "layers": 3}),
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda param: f"{param[0]}-{param[1]}".replace("torch.", ""))
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    name, dtype, shape = request.param
    if name == "smollm2":
        return Lab(request.getfixturevalue("smollm2_path"), dtype)
    return Lab(write_hf_checkpoint(tmp_path_factory.mktemp("odd") / name, **shape), dtype)


@pytest.fixture(scope="module")
def subjects(lab: Lab) -> list[SegmentRequest]:
    ids = lab.tokenizer.encode(TEXT)
    return [request(name, (ids * 3)[i : i + 60], 24, sampling) for i, (name, sampling) in enumerate(SAMPLINGS.items())]


@pytest.fixture(scope="module")
def plain(lab: Lab, subjects: list[SegmentRequest]) -> Run:
    return lab.engine().run(subjects)


@dataclass(frozen=True)
class Prophet:
    """Guesses what is going to be said; each third guess is wrong."""

    said: Sequence[tuple[int, ...]]  # prompts with outputs

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        known = next(one for one in self.said if one[: len(tokens)] == tuple(tokens))
        ahead = range(len(tokens), min(len(known), len(tokens) + limit, len(tokens) + 5))
        return tuple(abs(known[at] - (at % 3 == 0)) for at in ahead)


class Eager(Speculation):
    def lengths(self, proposals: Sequence[Drafts | None], prefill: int, room: int) -> list[int]:
        return [min(len(drafts.proposal), room // len(proposals)) for drafts in proposals if drafts is not None]


def prophet(subjects: Sequence[SegmentRequest], plain: Run) -> Callable[[], Drafter]:
    return lambda: Prophet([(*r.prompt, *plain.ids[r.id]) for r in subjects])


def check_same(run: Run, plain: Run, subjects: Sequence[SegmentRequest]) -> None:
    """Rows that were computed for wrong guesses stand beyond those that chose a token, or were computed again."""
    for subject in subjects:
        assert run.ids[subject.id] == plain.ids[subject.id]
        assert run.text[subject.id] == plain.text[subject.id]
        assert run.finish[subject.id].state == plain.finish[subject.id].state
        rows, expected = run.rows(subject.id), plain.rows(subject.id)
        assert same_bits({at: rows[at] for at in expected}, expected)


@pytest.mark.parametrize("together", [True, False])
def test_guesses_leave_no_trace(lab: Lab, subjects: list[SegmentRequest], plain: Run, together: bool) -> None:
    for some in [subjects] if together else [[subject] for subject in subjects]:
        engine = lab.engine(speculation=Eager(prophet(subjects, plain)))
        check_same(engine.run(some), plain, some)
        assert engine.stats.accepted_tokens > 5 * len(some)
        assert engine.stats.drafted_tokens - engine.stats.accepted_tokens > 3 * len(some)


def test_lookup_leaves_no_trace(lab: Lab, subjects: list[SegmentRequest], plain: Run) -> None:
    engine = lab.engine(speculation=Eager(PromptLookup))
    check_same(engine.run(subjects), plain, subjects)
    assert engine.stats.drafted_tokens > 0


def test_log_probabilities_are_the_same(lab: Lab, subjects: list[SegmentRequest], plain: Run) -> None:
    [subject] = [one for one in subjects if one.sampling.logprobs is not None]
    tokens = []
    for speculation in (None, Eager(prophet(subjects, plain))):
        engine = lab.engine(speculation=speculation)
        engine.add(subject)
        tokens.append([token for delta in iter_steps(engine) for token in delta.tokens])
    assert tokens[0] == tokens[1] and all(token.logprob is not None and len(token.top) == 3 for token in tokens[0])


def test_what_guesses_wrote_is_no_cached_block(lab: Lab, subjects: list[SegmentRequest], plain: Run) -> None:
    """A request that goes on from a speculated output finds its blocks, and the bits it would have computed."""
    subject = subjects[1]
    longer = replace(subject, id="longer", prompt=(*subject.prompt, *plain.ids[subject.id]), sampling=GREEDY)
    engine = lab.engine(speculation=Eager(prophet(subjects, plain)))
    engine.run([subject])
    engine.scheduler.speculation.make = None
    found = engine.run([longer])
    fresh = lab.engine().run([longer])
    assert found.finish["longer"].usage.cached_tokens == 80
    assert same_bits(found.rows("longer"), fresh.rows("longer"))


def iter_steps(engine: Any) -> Any:
    while not engine.idle:
        yield from engine.step()
