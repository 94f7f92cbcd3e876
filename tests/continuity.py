"""Sessions whose answers are given or scripted, over a byte-level tokenizer: what their prompts show."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from fakes import Script
from ghostkv.evaluate.forced import ForcedSegment, forced
from ghostkv.protocol.ledger import Ledger, Standing
from ghostkv.request import Delta, Message, Sampling, SegmentRequest
from ghostkv.residency import SegmentBudget, policy
from ghostkv.residency.segment import Segment
from ghostkv.session.chain import Chain
from ghostkv.session.context import TurnContext
from ghostkv.session.turn import Turn
from ghostkv.session.worker import Worker
from ghostkv.text.detokenizer import Detokenizer
from services import TEMPLATE, TOKENIZER, ScriptedBackend, saying, scripted_worker

ANSWER = (
    "The unit reports that all is well today. Its valve Q-17 opens at 31.5 kPa and closes at noon. The crew of the "
    "Halcyon has checked the seals, the pumps and the lamps of deck 4. Captain Ilse Brandt signed the list. "
)
FILLER = "The storm rose over the ridge. Nobody spoke, and the corridor was dark. "
BYTES = Segment(budget=SegmentBudget(target=150, cap=192, tail=64, state=240, recall=60))  # a token is a byte here


class Recording(ScriptedBackend):
    """Remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.requests: list[SegmentRequest] = []

    def generate(self, request: SegmentRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        return super().generate(request)

    def prompts(self, since: int = 0) -> list[tuple[int, ...]]:
        return [request.prompt for request in self.requests[since:]]


def turn(messages: Sequence[Message], **fields: Any) -> Turn:
    return replace(
        Turn("t", Sampling(temperature=0.0), max_tokens=210, messages=tuple(messages), residency="segment"), **fields
    )


def context(residency: Segment = BYTES) -> TurnContext:
    return TurnContext(
        TEMPLATE.render_ids,
        TOKENIZER.encode,
        TOKENIZER.token_bytes,
        TOKENIZER.eos_ids,
        lambda: 0.0,
        policies=lambda _: residency,
    )


def answer(messages: Sequence[Message], text: str, residency: Segment = BYTES, **fields: Any) -> list[ForcedSegment]:
    """The segments of an answer that is `text`; the last one is open."""
    ids = TOKENIZER.encode(text)
    asked = turn(messages, max_tokens=len(ids) + 1, ignore_eos=True, **fields)
    capabilities = replace(ScriptedBackend(saying("")).capabilities(), max_context=100_000, kv_budget=200_000)
    return list(forced(Chain.of(asked, context(residency), capabilities), ids, Detokenizer(TOKENIZER)))


def shown(segment: ForcedSegment) -> str:
    """A prompt as text, without control tokens: a role stands on a line of its own."""
    return TOKENIZER.decode(segment.assembled.ids)


def notes(segment: ForcedSegment) -> str:
    """Of a prompt, the lines that the protocol carried."""
    return " ".join(segment.assembled.block.texts)


def ledger(segment: ForcedSegment) -> Ledger:
    return segment.carried.memory.payload.payload.ledger


def standing(found: Ledger, value: str) -> Standing:
    return next(standing for standing in found.standings() if standing.fact.value == value)


def started() -> tuple[Worker, Recording]:
    """A worker whose `segment` has constants that suit a byte-level tokenizer."""
    backend = Recording(saying(ANSWER * 6))
    worker = scripted_worker(backend)
    own = replace(worker.context, policies=lambda name: BYTES if name == BYTES.name else policy(name))
    return replace(worker, context=own), backend


STORY = (Message("system", "Write in the present tense."), Message("user", "Continue the story about the habitat."))
