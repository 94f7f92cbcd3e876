"""Exact recall: does a fact stated many segments ago still stand in the answer? Beside ceilings and controls.

Every arm gets the same documents and the same questions, so arms are compared question by question. An answer is right
if the value stands in its first greedy tokens (24; 48 where the start of a sentence may be repeated before it).
Besides, of four candidates the one with the highest mean log-probability after the answer's stem is chosen. This module
asks and judges; `compare` sums up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ghostkv.errors import ConfigError
from ghostkv.evaluate.answers import contains
from ghostkv.evaluate.arms import CONTINUED, DIRECT, FORMS, Asker, RecallArm
from ghostkv.evaluate.documents import Document, Probe, Shape, document
from ghostkv.evaluate.lab import Lab

_OTHER = 10_000  # the seed of "another session" is this far away: never one of the documents asked about
Count = Callable[[str], int]
Filler = Callable[[int], Iterator[str]]  # seed of a document -> sentences between its facts


class Source(Protocol):
    """Where documents and their questions come from."""

    @property
    def name(self) -> str:
        """For the record."""
        ...

    @property
    def forms(self) -> Sequence[str]:
        """How its questions can be put: some of FORMS."""
        ...

    @property
    def answer_tokens(self) -> int:
        """The most that an answer may take to say the value."""
        ...

    def show(self, seed: int, shape: Shape, count: Count, shows: str) -> Document:
        """The document of a seed, as an arm that `shows` it ("own", "other" or "wrong") is given it."""
        ...


@dataclass(frozen=True, slots=True)
class Invented:
    """Generated documents."""

    filler: Filler | None = None
    """None: invented too."""
    name: str = "invented"
    forms: Sequence[str] = FORMS
    answer_tokens: int = 24

    def show(self, seed: int, shape: Shape, count: Count, shows: str) -> Document:
        """See Source. Wrong values are other ones for the same questions."""
        seed += _OTHER if shows == "other" else 0
        variant = "wrong" if shows == "wrong" else ""
        return document(seed, shape, count, variant=variant, filler=self.filler and self.filler(seed))


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked."""

    documents: int = 40
    shape: Shape = field(default_factory=Shape)
    forms: tuple[str, ...] = (DIRECT,)
    choice: bool = True  # forced choice besides greedy answers
    windowed: int = 10  # documents for the arms that see through a window, which no prefix cache makes cheaper
    source: Source = field(default_factory=Invented)

    def __post_init__(self) -> None:
        known = self.source.forms
        unknown = [form for form in self.forms if form not in known]
        if unknown or not self.forms:
            raise ConfigError(f"there is no form {', '.join(unknown)!r}: choose among {', '.join(known)}")


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
    window: int | None = None  # tokens that the arm's window holds

    @property
    def key(self) -> tuple[int, int, str]:
        """Equal for the same question to another arm."""
        return self.document, self.probe, self.form


async def ask(
    lab: Lab, arms: Sequence[RecallArm], plan: Plan, tell: Callable[[str], None] = lambda _: None
) -> AsyncIterator[list[Outcome]]:
    """Ask everything; yields the outcomes of one arm on one document at a time."""
    for seed in range(plan.documents):
        shown = {
            shows: plan.source.show(seed, plan.shape, lab.count, shows)
            for shows in dict.fromkeys(("own", *(arm.shows for arm in arms)))
        }
        if not shown["own"].probes:
            continue
        for arm in arms:
            if seed >= plan.windowed and arm.residency.visible is not None:
                continue
            tell(f"recall: document {seed + 1} of {plan.documents}, {arm.name}")
            judged = shown["wrong"] if arm.shows == "wrong" else shown["own"]
            asker = arm.open(lab, shown[arm.shows])
            yield await _document(lab, arm, asker, judged, plan)


async def _document(lab: Lab, arm: RecallArm, asker: Asker, judged: Document, plan: Plan) -> list[Outcome]:
    asked = [(index, form) for form in plan.forms for index in range(len(judged.probes))]
    # The first question alone computes what all have in common; the others then find it in the prefix cache.
    choice = plan.choice and arm.residency.visible is None
    first = await _question(lab, arm, asker, judged, *asked[0], plan, choice=choice)
    others = (_question(lab, arm, asker, judged, *each, plan, choice=choice) for each in asked[1:])
    return [first, *await asyncio.gather(*others)]


async def _question(
    lab: Lab, arm: RecallArm, asker: Asker, judged: Document, index: int, form: str, plan: Plan, *, choice: bool
) -> Outcome:
    probe = judged.probes[index]
    prompt = asker(probe, form)
    answer = await lab.greedy(prompt, plan.source.answer_tokens, arm.residency)
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
        window=None if arm.residency.visible is None else arm.residency.visible.size,
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
