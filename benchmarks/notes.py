"""Which form, place and number of carried lines a small model answers from best (docs/experiments.md).

Questions about generated documents of some 50 segments; prompts are assembled as `segment` does it, but for what the
arm's name says: form, place, and how close to the best line's score another must come. Greedy, 24 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from record import append

from ghostkv.evaluate.arms import DIRECT, PARAPHRASE, FactsAlone, RecallArm, Segmented
from ghostkv.evaluate.documents import Document, Probe, Shape, document
from ghostkv.evaluate.lab import Lab
from ghostkv.launch import engine_config, open_worker
from ghostkv.protocol import state
from ghostkv.protocol.render import Renderer
from ghostkv.residency import policy

FIRST_SEED = 100  # not the seeds of `ghostkv eval continuity`
AT_ONCE = 48


@dataclass(frozen=True)
class Form:
    """A renderer from a function of the lines, before or after the question."""

    block: Callable[[Sequence[str]], str]
    before: bool

    def __call__(self, question: str, lines: Sequence[str], *, begun: bool) -> str:
        parts = (self.block(lines), question)
        return "\n\n".join(parts if self.before else reversed(parts))


def sentences(lines: Sequence[str]) -> str:
    return f"Known facts: {' '.join(lines)}"


def bare(lines: Sequence[str]) -> str:
    return " ".join(lines)


def quoted_list(lines: Sequence[str]) -> str:
    return "\n".join(("Known facts:", *(f'- "{line}"' for line in lines)))


def quoted_notes(lines: Sequence[str]) -> str:
    return "Notes from earlier in this conversation: " + " ".join(f'"{line}"' for line in lines)


FORMS = {"sentences": sentences, "bare": bare, "quoted list": quoted_list, "quoted notes": quoted_notes}
ARMS = [
    *((form, place, 80) for place in ("before", "after") for form in FORMS),
    *(("sentences", place, close) for place in ("before", "after") for close in (0, 60)),
]


async def share(lab: Lab, arm: RecallArm, documents: Sequence[Document], form: str) -> dict[str, float]:
    """Percent of questions whose answer holds the value: facts that never changed, and facts that did."""
    jobs: list[tuple[Probe, tuple[int, ...]]] = []
    for each in documents:
        asker = arm.open(lab, each)
        jobs += [(probe, asker(probe, form)) for probe in each.probes]
    gate = asyncio.Semaphore(AT_ONCE)

    async def right(probe: Probe, prompt: tuple[int, ...]) -> bool:
        async with gate:
            return probe.value.casefold() in (await lab.greedy(prompt, 24)).casefold()

    found = await asyncio.gather(*(right(*job) for job in jobs))
    shares: dict[str, float] = {"prompt": sum(len(prompt) for _, prompt in jobs) / len(jobs)}
    for name, changed in (("same", False), ("changed", True)):
        of = [ok for ok, (probe, _) in zip(found, jobs, strict=True) if bool(probe.fact.replaced) == changed]
        shares[name] = 100 * sum(of) / len(of)
    return shares


async def main(documents: int) -> None:
    worker = open_worker("smollm2", engine_config(kv_budget="512MiB"), announce=print)
    plain = Lab(worker)
    made = [document(FIRST_SEED + seed, Shape(), plain.count) for seed in range(documents)]
    budget = policy("segment").budget
    if budget is None:
        raise SystemExit("the policy `segment` has no budget")
    rows: list[dict[str, object]] = []

    async def measure(name: str, lab: Lab, arm: RecallArm) -> None:
        row: dict[str, object] = {"arm": name}
        for form in (DIRECT, PARAPHRASE):
            row[form] = await share(lab, arm, made, form)
        rows.append(row)
        print(row, flush=True)

    try:
        for facts in (6, 1):
            await measure(f"gold facts alone, {facts}", plain, FactsAlone(facts))
        for form, place, close in ARMS:
            state.CLOSE = close
            renderer: Renderer = Form(FORMS[form], before=place == "before")
            lab = Lab(replace(worker, context=replace(worker.context, renderer=renderer)))
            await measure(f"{form}, {place}, {close} %", lab, Segmented("segment", budget))
    finally:
        worker.close()
    for row in rows:
        row |= {"documents": documents, "questions": sum(len(each.probes) for each in made)}
    print(f"written to {append('notes', rows)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=4)
    asyncio.run(main(parser.parse_args().documents))
