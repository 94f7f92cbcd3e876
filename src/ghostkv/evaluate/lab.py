"""A worker as an instrument: continue these ids greedily, score these ids, chain this turn under that policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from ghostkv.backends.base import SCORING
from ghostkv.errors import EngineFault
from ghostkv.evaluate.forced import ForcedSegment, forced
from ghostkv.protocol.rules import EndOfSequence
from ghostkv.request import Finish, GenerationState, Message, Sampling, SegmentRequest
from ghostkv.residency import Policy, policy
from ghostkv.session.chain import Chain
from ghostkv.session.turn import Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker
from ghostkv.text.detokenizer import Detokenizer

_serial = count()


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """Token ids that a raw completion goes on with, as they are."""

    ids: tuple[int, ...]


Asked = Sequence[Message] | RawPrompt
"""What an answer answers."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A real answer."""

    text: str
    ids: tuple[int, ...]
    segments: tuple[SegmentRecord, ...]
    end: Finished


@dataclass(frozen=True, slots=True)
class Lab:
    """Everything that an evaluation asks of a model."""

    worker: Worker

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of ordinary text."""
        return tuple(self.worker.tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return self.worker.tokenizer.decode(ids)

    def count(self, text: str) -> int:
        """Tokens of `text`."""
        return len(self.worker.tokenizer.encode(text))

    def render(self, asked: Asked) -> tuple[int, ...]:
        """The prompt of a conversation or of a raw completion, whole."""
        return asked.ids if isinstance(asked, RawPrompt) else tuple(self.worker.context.template(asked))

    def chain(self, asked: Asked, residency: Policy, answer: int) -> Chain:
        """A turn under `residency` whose answer may have `answer` tokens, and which no token ends."""
        context = replace(self.worker.context, policies=lambda _: residency)
        turn = Turn(
            id=f"evaluate-{next(_serial)}",
            sampling=Sampling(temperature=0.0),
            max_tokens=answer,
            messages=() if isinstance(asked, RawPrompt) else tuple(asked),
            prompt=asked.ids if isinstance(asked, RawPrompt) else (),
            ignore_eos=True,
            residency=residency.name,
        )
        return Chain.of(turn, context, self.worker.backend.capabilities())

    def forced(self, asked: Asked, residency: Policy, ids: Sequence[int]) -> list[ForcedSegment]:
        """The segments of an answer that is `ids`; the last one is open."""
        detokenizer = Detokenizer(self.worker.tokenizer)
        return list(forced(self.chain(asked, residency, len(ids) + 1), ids, detokenizer))

    async def greedy(self, prompt: Sequence[int], tokens: int, residency: Policy | None = None) -> str:
        """The text of at most `tokens` greedy tokens after `prompt`, up to the end of the answer."""
        context = self.worker.context
        request = SegmentRequest(
            id=f"evaluate-{next(_serial)}",
            prompt=tuple(prompt),
            sampling=Sampling(temperature=0.0),
            state=GenerationState(rules=(EndOfSequence(frozenset(context.eos_ids)),)),
            residency=residency or policy("full"),
            remaining=tokens,
            tenant=SCORING,
        )
        text, finish = "", None
        async for delta in self.worker.backend.generate(request):
            text += delta.text
            finish = delta.finish
        if not isinstance(finish, Finish):
            raise EngineFault(f"the backend ended {request.id} without saying why")
        return text

    async def score(self, prompt: Sequence[int], ids: Sequence[int], residency: Policy | None = None) -> list[float]:
        """Natural log-probability of each of `ids` after `prompt`."""
        window = None if residency is None else residency.visible
        return await self.worker.backend.score((*prompt, *ids), len(prompt), window)

    async def answer(self, turn: Turn, residency: Policy) -> Generated:
        """Run a whole turn under `residency`."""
        context = replace(self.worker.context, policies=lambda _: residency)
        worker = replace(self.worker, context=context)
        text, ids = "", list[int]()
        async for event in worker.run(replace(turn, residency=residency.name)):
            if isinstance(event, Output):
                text += event.text
                ids += [token.id for token in event.tokens]
            elif isinstance(event, Finished):
                return Generated(text, tuple(ids), event.segments, event)
        raise EngineFault(f"the answer to {turn.id} has no end")
