"""What is compared: the policies and their budgets, each under the name that tables and plots show.

An arm of the recall test turns a document and a question into a prompt; here are also the figures that every result is
printed with. How the prompts are asked, scored and compared is `recall`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from ghostkv.evaluate.documents import Document, Probe
from ghostkv.evaluate.lab import Lab
from ghostkv.request import Message
from ghostkv.residency import Policy, SegmentBudget, policy
from ghostkv.residency.segment import Segment

ASK = "Write a long and detailed report on everything that you have heard about this week."

DIRECT, PARAPHRASE, CONTINUED = FORMS = ("direct", "paraphrase", "continued")
"""How a question is put: in the document's words, in others, or as the open answer's own next sentence."""

Asker = Callable[[Probe, str], tuple[int, ...]]  # (probe, form) -> prompt ids


class RecallArm(Protocol):
    """One way to bring a document to a question."""

    @property
    def name(self) -> str:
        """As tables show it."""
        ...

    @property
    def residency(self) -> Policy:
        """What the engine continues the prompt under."""
        ...

    @property
    def shows(self) -> str:
        """Which document it is given: "own", "other" (of another session) or "wrong" (own, with other values)."""
        ...

    def configuration(self) -> Mapping[str, Any]:
        """The numbers behind it, for the record."""
        ...

    def open(self, lab: Lab, document: Document) -> Asker:
        """Take in a document, once for all its questions."""
        ...


def conversation(text: str, question: str) -> tuple[Message, ...]:
    """The document as an earlier answer, then the question."""
    return Message("user", ASK), Message("assistant", text), Message("user", question)


def asked(probe: Probe, form: str) -> str:
    """The question in one of FORMS that is a message."""
    return probe.question(paraphrased=form == PARAPHRASE)


def continuation(probe: Probe) -> str:
    """What an open answer goes on with where the form is CONTINUED: the value comes next."""
    return f"\n\n{probe.stem}"


@dataclass(frozen=True, slots=True)
class History:
    """The whole conversation, read under `residency`: `full`, or a window inside the engine."""

    name: str
    residency: Policy
    shows: str = "own"

    def configuration(self) -> Mapping[str, Any]:
        """The policy, and its window if it has one."""
        window = self.residency.visible
        return {"residency": self.residency.name} | ({} if window is None else asdict(window))

    def open(self, lab: Lab, document: Document) -> Asker:
        """See RecallArm."""
        begun = (*lab.render((Message("user", ASK),)), *lab.encode(document.text))

        def prompt(probe: Probe, form: str) -> tuple[int, ...]:
            if form == CONTINUED:
                return (*begun, *lab.encode(continuation(probe)))
            return lab.render(conversation(document.text, asked(probe, form)))

        return prompt


@dataclass(frozen=True, slots=True)
class Segmented:
    """The protocol: what stands in the prompt of the segment that answers."""

    name: str
    budget: SegmentBudget
    shows: str = "own"

    @property
    def residency(self) -> Policy:
        """An answer is shorter than a segment, so that no boundary comes."""
        return policy("full")

    def configuration(self) -> Mapping[str, Any]:
        """Its constants."""
        return {"residency": "segment"} | asdict(self.budget)

    def open(self, lab: Lab, document: Document) -> Asker:
        """See RecallArm. For the form CONTINUED the document is "generated", flush by flush."""
        rules = Segment(budget=self.budget)
        begun: list[int] = []

        def prompt(probe: Probe, form: str) -> tuple[int, ...]:
            if form != CONTINUED:
                chain = lab.chain(conversation(document.text, asked(probe, form)), rules, self.budget.cap)
                return chain.assemble(chain.begin()).ids
            if not begun:
                last = lab.forced((Message("user", ASK),), rules, lab.encode(document.text))[-1]
                begun.extend((*last.assembled.ids, *last.ids))
            return (*begun, *lab.encode(continuation(probe)))

        return prompt


@dataclass(frozen=True, slots=True)
class LastTokens:
    """The document's last tokens alone."""

    tokens: int
    name: str = "last tokens"
    shows: str = "own"

    @property
    def residency(self) -> Policy:
        """The prompt is all there is."""
        return policy("full")

    def configuration(self) -> Mapping[str, Any]:
        """How many."""
        return {"residency": "full", "tokens": self.tokens}

    def open(self, lab: Lab, document: Document) -> Asker:
        """See RecallArm."""
        ids = lab.encode(document.text)[-self.tokens :]
        text = lab.decode(ids)

        def prompt(probe: Probe, form: str) -> tuple[int, ...]:
            if form == CONTINUED:
                return (*lab.render((Message("user", ASK),)), *ids, *lab.encode(continuation(probe)))
            return lab.render(conversation(text, asked(probe, form)))

        return prompt


@dataclass(frozen=True, slots=True)
class FactsAlone:
    """A ceiling: the fact that is asked for, among a few others, in the question; nothing else."""

    facts: int = 6
    name: str = "facts alone"
    shows: str = "own"

    @property
    def residency(self) -> Policy:
        """The prompt is all there is."""
        return policy("full")

    def configuration(self) -> Mapping[str, Any]:
        """How many."""
        return {"residency": "full", "facts": self.facts}

    def open(self, lab: Lab, document: Document) -> Asker:
        """See RecallArm. A changed fact is shown with its last value only."""
        current = {(fact.subject, fact.attribute.name): fact for fact in document.facts}

        def prompt(probe: Probe, form: str) -> tuple[int, ...]:
            wanted = probe.fact.plainly
            others = [fact.plainly for fact in current.values() if fact != probe.fact]
            step = max(1, len(others) // max(1, self.facts - 1))
            first = document.probes.index(probe) % step
            lines = others[first::step][: self.facts - 1]
            lines.insert(document.probes.index(probe) % (len(lines) + 1), wanted)
            known = f"Known facts: {' '.join(lines)}"
            if form == CONTINUED:
                return (*lab.render((Message("user", f"{ASK}\n\n{known}"),)), *lab.encode(probe.stem))
            return lab.render((Message("user", f"{known}\n\n{asked(probe, form)}"),))

        return prompt


def parts(budget: SegmentBudget) -> dict[str, SegmentBudget]:
    """The budget, and with the parts of the payload switched on one by one."""
    return {
        "tail": replace(budget, state=0, recall=0),
        "tail + state": replace(budget, recall=0),
        "tail + recall": replace(budget, state=0),
        "segment": budget,
    }
