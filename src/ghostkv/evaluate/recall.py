"""Exact recall: does a fact stated many segments ago still stand in the answer? Beside ceilings and controls.

Every arm gets the same documents and the same questions, so arms are compared question by question. An answer is right
if the value stands in at most 24 greedy tokens (case and white space folded); besides, of four candidates the one with
the highest mean log-probability after the answer's stem is chosen. This module asks and judges; `compare` sums up.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ghostkv.errors import ConfigError
from ghostkv.evaluate.arms import CONTINUED, DIRECT, FORMS, Asker, RecallArm
from ghostkv.evaluate.documents import Document, Probe, Shape, document
from ghostkv.evaluate.lab import Lab

ANSWER_TOKENS = 24
_OTHER = 10_000  # the seed of "another session" is this far away: never one of the documents asked about
Filler = Callable[[int], Iterator[str]]  # seed of a document -> sentences between its facts


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked."""

    documents: int = 40
    shape: Shape = field(default_factory=Shape)
    forms: tuple[str, ...] = (DIRECT,)
    choice: bool = True  # forced choice besides greedy answers
    windowed: int = 10  # documents for the arms that see through a window, which no prefix cache makes cheaper
    filler: Filler | None = None
    """None: invented."""

    def __post_init__(self) -> None:
        unknown = [form for form in self.forms if form not in FORMS]
        if unknown or not self.forms:
            raise ConfigError(f"there is no form {', '.join(unknown)!r}: choose among {', '.join(FORMS)}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question to one arm."""

    arm: str
    document: int
    probe: int
    distance: int  # segments, nominal
    form: str
    changed: bool  # the fact had another value before
    value: str  # what counts as right
    answer: str
    right: bool
    stale: bool  # the replaced value stands in the answer, and the right one does not
    chosen: bool | None  # forced choice; None where it was not asked
    prompt_tokens: int
    answer_tokens: int

    @property
    def key(self) -> tuple[int, int, str]:
        """Equal for the same question to another arm."""
        return self.document, self.probe, self.form


def contains(answer: str, value: str) -> bool:
    """Whether `value` stands in `answer` as a whole: not as a part of a longer word or number."""
    text, wanted = _folded(answer), _folded(value)
    return re.search(rf"(?<![\w])(?<!\d[.,:-]){re.escape(wanted)}(?![\w])(?![.,:-]\d)", text) is not None


async def ask(
    lab: Lab, arms: Sequence[RecallArm], plan: Plan, tell: Callable[[str], None] = lambda _: None
) -> AsyncIterator[list[Outcome]]:
    """Ask everything; yields the outcomes of one arm on one document at a time."""
    for seed in range(plan.documents):
        shown = _shown(seed, plan, lab.count, {arm.shows for arm in arms})
        for arm in arms:
            if seed >= plan.windowed and arm.residency.visible is not None:
                continue
            tell(f"recall: document {seed + 1} of {plan.documents}, {arm.name}")
            judged = shown["wrong"] if arm.shows == "wrong" else shown["own"]
            asker = arm.open(lab, shown[arm.shows])
            yield await _document(lab, arm, asker, judged, plan)


def _shown(seed: int, plan: Plan, count: Callable[[str], int], needed: set[str]) -> Mapping[str, Document]:
    def make(seed: int, variant: str) -> Document:
        return document(seed, plan.shape, count, variant=variant, filler=plan.filler and plan.filler(seed))

    shown = {"own": make(seed, "")}
    if "other" in needed:
        shown["other"] = make(seed + _OTHER, "")
    if "wrong" in needed:
        shown["wrong"] = make(seed, "wrong")
    return shown


async def _document(lab: Lab, arm: RecallArm, asker: Asker, judged: Document, plan: Plan) -> list[Outcome]:
    asked = [(index, form) for form in plan.forms for index in range(len(judged.probes))]
    # The first question alone computes what all have in common; the others then find it in the prefix cache.
    choice = plan.choice and arm.residency.visible is None
    first = await _question(lab, arm, asker, judged, *asked[0], choice=choice)
    others = (_question(lab, arm, asker, judged, *each, choice=choice) for each in asked[1:])
    return [first, *await asyncio.gather(*others)]


async def _question(
    lab: Lab, arm: RecallArm, asker: Asker, judged: Document, index: int, form: str, *, choice: bool
) -> Outcome:
    probe = judged.probes[index]
    prompt = asker(probe, form)
    answer = await lab.greedy(prompt, ANSWER_TOKENS, arm.residency)
    right = contains(answer, probe.value)
    replaced = probe.fact.replaced
    return Outcome(
        arm=arm.name,
        document=judged.seed,
        probe=index,
        distance=probe.distance,
        form=form,
        changed=bool(replaced),
        value=probe.value,
        answer=answer,
        right=right,
        stale=bool(replaced) and not right and contains(answer, replaced),
        chosen=await _chosen(lab, arm, prompt, probe, form) if choice else None,
        prompt_tokens=len(prompt),
        answer_tokens=lab.count(answer),
    )


async def _chosen(lab: Lab, arm: RecallArm, prompt: Sequence[int], probe: Probe, form: str) -> bool:
    """Whether the right value is the likeliest of the candidates by mean log-probability of its tokens."""
    stem = () if form == CONTINUED else lab.encode(probe.stem)
    means = []
    for candidate in probe.candidates:
        ids = lab.encode(f" {candidate}")
        scores = await lab.score((*prompt, *stem), ids, arm.residency)
        means.append(sum(scores) / len(scores))
    return means[0] > max(means[1:])


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
