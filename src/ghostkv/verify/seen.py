"""What was seen of an answer, raw logits included, and how two of them compare.

Logits are held as digests: equal ones are equal bits. They are named by segment and by the tokens before them, so a
run that was interrupted and went on elsewhere is compared part by part with one that was not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ghostkv.model.runner import ModelRunner
from ghostkv.request import Token
from ghostkv.session.turn import Event, Output
from ghostkv.step import StepPlan

if TYPE_CHECKING:
    import torch

MEASURES = ("logits", "log-probabilities", "top-5", "tokens")

Place = tuple[int, int]
"""Segment, and tokens of its request before the one that was drawn."""

Logits = Mapping[Place, str]
"""Digests of rows of logits."""


class Sight:
    """The latest logits of every request, by (request, tokens before). What a wrong guess led to is seen again."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], str] = {}

    def saw(self, request_id: str, length: int, row: bytes) -> None:
        """One row."""
        self._rows[request_id, length] = hashlib.blake2b(row, digest_size=16).hexdigest()

    def taken(self, turn_id: str) -> dict[Place, str]:
        """Those of an answer's segments, which are forgotten here."""
        own = {key: row for key, row in self._rows.items() if key[0].rpartition(".")[0] == turn_id}
        for key in own:
            del self._rows[key]
        return {(int(request.rpartition(".")[2]), length): row for (request, length), row in own.items()}


class Watched(ModelRunner):
    """A runner whose logits are seen."""

    def __init__(self, runner: ModelRunner, sight: Sight) -> None:
        """It shares everything with `runner`."""
        vars(self).update(vars(runner))
        self._sight = sight

    def forward(self, plan: StepPlan) -> torch.Tensor:
        """See ModelRunner."""
        logits = super().forward(plan)
        rows = iter(logits.cpu().numpy())
        for row in plan.rows:
            end = row.start + len(row.tokens)
            for length in range(end - len(row.draws) + 1, end + 1):
                self._sight.saw(row.request_id, length, next(rows).tobytes())
        return logits


@dataclass(frozen=True, slots=True)
class Seen:
    """One answer."""

    tokens: tuple[Token, ...]
    text: str
    logits: tuple[Logits, ...]  # of each run that it took

    @classmethod
    def of(cls, events: Sequence[Event], logits: Sequence[Logits]) -> Seen:
        """From its events, all of them."""
        outputs = [event for event in events if isinstance(event, Output)]
        tokens = tuple(token for output in outputs for token in output.tokens)
        return cls(tokens, "".join(output.text for output in outputs), tuple(logits))


@dataclass(frozen=True, slots=True)
class Compared:
    """Of one measure: how much was compared, and the first difference, "" for none."""

    count: int = 0
    difference: str = ""

    def __add__(self, other: Compared) -> Compared:
        return Compared(self.count + other.count, self.difference or other.difference)


@dataclass(frozen=True, slots=True)
class Likeness:
    """Of one answer to its reference, by measure."""

    of: Mapping[str, Compared] = field(default_factory=dict)


def likeness(reference: Seen, seen: Seen) -> Likeness:
    """Bit for bit. `reference` took one run, in which every logit that was drawn from was seen once."""
    found = {
        "logits": _logits(reference.logits[0], seen.logits),
        "log-probabilities": _tokens(reference, seen, lambda token: token.logprob),
        "top-5": _tokens(reference, seen, lambda token: token.top),
        "tokens": _tokens(reference, seen, lambda token: token.id),
    }
    if reference.text != seen.text and not found["tokens"].difference:
        found["tokens"] = Compared(found["tokens"].count, "the same tokens have another text")
    return Likeness(found)


def _logits(reference: Logits, runs: Sequence[Logits]) -> Compared:
    """Every run against the reference where both have a row, and every row of the reference in some run."""
    wrong = sorted(place for run in runs for place, row in run.items() if reference.get(place, row) != row)
    missing = sorted(place for place in reference if not any(place in run for run in runs))
    said = f"segment {wrong[0][0]} after {wrong[0][1]} tokens" if wrong else ""
    said = said or (f"segment {missing[0][0]} after {missing[0][1]} tokens was not computed" if missing else "")
    return Compared(sum(place in reference for run in runs for place in run), said)


def _tokens(reference: Seen, seen: Seen, value: Callable[[Token], object]) -> Compared:
    pairs = list(zip(reference.tokens, seen.tokens, strict=False))
    for at, (one, two) in enumerate(pairs):
        if value(one) != value(two):
            return Compared(len(pairs), f"token {at}: {value(two)} instead of {value(one)}")
    if len(reference.tokens) != len(seen.tokens):
        return Compared(len(pairs), f"{len(seen.tokens)} tokens instead of {len(reference.tokens)}")
    return Compared(len(pairs))
