"""Small stand-ins that several test modules share."""

from __future__ import annotations

import asyncio
import codecs
import re
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from ghostkv.backends.base import Capabilities
from ghostkv.engine.text_gate import TextGate
from ghostkv.request import (
    CONTINUE,
    Boundary,
    BoundaryMark,
    BoundaryView,
    Decision,
    Delta,
    Finish,
    FinishReason,
    SegmentRequest,
    SegmentUsage,
    Stop,
    Token,
    Verdict,
    Window,
)
from ghostkv.step import BLOCK_TOKENS, Draw, StepPlan, StepResult
from ghostkv.text.tokenizer import Tokenizer, byte_alphabet

# --- text: a byte-level tokenizer that needs no file ---

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
BYTE_CONTROL = ("<|bos|>", "<|endoftext|>", "<|eot|>", "<|im_start|>", "<|im_end|>")
BYTE_MERGES = ("h e", "l l", "he ll", "i n", "e r", "Ġ t", "Ġt he", "o n", "Ġ a")


def byte_tokenizer(extra_control: tuple[str, ...] = (), *, add_bos: bool = False) -> Tokenizer:
    """Byte-level BPE: id b is byte b, then the merges from id 256, then the control tokens.

    BOS is `<|bos|>`; `<|im_end|>`, `<|endoftext|>` and `<|eot|>` end a generation, in this order.
    """
    vocabulary = byte_alphabet()
    merges = [(left, right) for left, right in (merge.split(" ") for merge in BYTE_MERGES)]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [tokenizers.AddedToken(text, normalized=False) for text in (*BYTE_CONTROL, *extra_control)]
    )
    bos, endoftext, eot, _, im_end = range(len(vocabulary), len(vocabulary) + len(BYTE_CONTROL))
    return Tokenizer(inner, bos_id=bos, eos_ids=(im_end, endoftext, eot), add_bos=add_bos)


# --- engine: a clock, a runner, a detokeniser, a policy and rules without model or text ---

Script = Callable[[tuple[int, ...], Draw], int]  # (all tokens so far, draw) -> next token id


class VirtualClock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += seconds


class ScriptedRunner:
    """A runner over a paged memory of token ids instead of KV.

    It writes each row's tokens through the row's block table and reads the whole history back through it, so a wrong
    table, position or cache hit gives a script a wrong history, as it would give attention wrong keys.
    """

    def __init__(
        self, num_blocks: int, script: Script, clock: VirtualClock | None = None, seconds: float = 0.01
    ) -> None:
        self.plans: list[StepPlan] = []
        self._memory = np.full(num_blocks * BLOCK_TOKENS, -1, dtype=np.int64)
        self._script = script
        self._clock = clock
        self._seconds = seconds

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if self._clock is not None:
            self._clock.advance(self._seconds)
        for row in plan.rows:
            positions = np.arange(row.start, row.start + len(row.tokens))
            slots = row.table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
            self._memory[slots] = row.tokens
        tokens = []
        for row in plan.rows:
            end = row.start + len(row.tokens)
            for length, draw in zip(range(end - len(row.draws) + 1, end + 1), row.draws, strict=True):
                positions = np.arange(length)
                slots = row.table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
                tokens.append(Token(self._script(tuple(self._memory[slots].tolist()), draw)))
        return StepResult(tuple(tokens), self._seconds)


def history_script(vocabulary: int) -> Script:
    """A token that depends on every earlier token and on everything in the draw; no masked one if there is another."""

    def script(history: tuple[int, ...], draw: Draw) -> int:
        counts = sorted(draw.counts.items()) if draw.counts is not None else None
        key = repr((history, draw.uniform, sorted(draw.client_ids), counts)).encode()
        allowed = [token for token in range(vocabulary) if token not in draw.masked] or [0]
        return allowed[zlib.crc32(key) % len(allowed)]

    return script


class ByteDetokenizer:
    """Token ids to text by way of bytes: `words[id]`, else the byte `id`."""

    def __init__(self, words: Mapping[int, bytes] | None = None) -> None:
        self._words = words or {}

    def feed(self, undecoded: bytes, token_id: int) -> tuple[str, bytes]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.setstate((undecoded, 0))
        piece = decoder.decode(self._words[token_id] if token_id in self._words else bytes([token_id % 256]))
        return piece, decoder.getstate()[0]

    def flush(self, undecoded: bytes) -> str:
        return undecoded.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class FixedResidency:
    """Reserves at most `block` output tokens at a time (None: all) and always decides the same."""

    decision: Decision = Decision.KEEP
    block: int | None = None
    seen: list[BoundaryView] = field(default_factory=list)
    name: str = "fixed"
    visible: Window | None = None

    def reserve(self, remaining: int) -> int:
        return remaining if self.block is None else min(self.block, remaining)

    def at_boundary(self, view: BoundaryView) -> Decision:
        self.seen.append(view)
        return self.decision


@dataclass(frozen=True, slots=True)
class EndRule:
    """Stops at a token id."""

    token_id: int
    held: int = 0

    def feed(self, token_id: int, piece: str) -> tuple[EndRule, Verdict]:
        return self, Stop(FinishReason.STOP) if token_id == self.token_id else CONTINUE


@dataclass(frozen=True, slots=True)
class StringRule:
    """Stops at a string and drops it."""

    stop: str
    pending: str = ""  # the longest end of the text that begins the string

    @property
    def held(self) -> int:
        return len(self.pending)

    def feed(self, token_id: int, piece: str) -> tuple[StringRule, Verdict]:
        text = self.pending + piece
        found = text.find(self.stop)
        if found >= 0:
            return self, Stop(FinishReason.STOP, drop=len(text) - found)
        pending = next(text[i:] for i in range(len(text) + 1) if self.stop.startswith(text[i:]))
        return StringRule(self.stop, pending), CONTINUE


@dataclass(frozen=True, slots=True)
class BoundaryRule:
    """A boundary after each of the given output tokens of the session, counted from 1."""

    after: frozenset[int]
    count: int = 0
    held: int = 0

    def feed(self, token_id: int, piece: str) -> tuple[BoundaryRule, Verdict]:
        successor = BoundaryRule(self.after, self.count + 1)
        return successor, Boundary("fixed") if successor.count in self.after else CONTINUE


# --- session: a backend that reads its answer from a list ---


class FakeBackend:
    """A backend without an engine: token n of any answer is `pieces[n % len(pieces)]`, whatever the prompt.

    Rules, held text, reservations, boundaries and the generation state work as in the engine. So an answer does not
    depend on assembly, and state that is lost at a boundary shows. Equal pieces have equal ids, from 1000.
    """

    def __init__(self, pieces: Iterable[str | bytes], capabilities: Capabilities | None = None) -> None:
        answer = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.ids = {piece: 1000 + i for i, piece in enumerate(dict.fromkeys(answer))}
        self.script = [self.ids[piece] for piece in answer]
        self.requests: list[SegmentRequest] = []
        self.log: list[str] = []  # "generate ID", "finish ID" and "cancel ID", in order
        self._bytes = {token_id: piece for piece, token_id in self.ids.items()}
        self._capabilities = capabilities or fake_capabilities()

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(token_id, b"")

    async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        self.requests.append(request)
        self.log.append(f"generate {request.id}")
        if request.scores is not None:
            yield Delta(request.id, prompt=tuple(Token(i, 0.0) for i in request.prompt[request.scores.start :]))
        if not request.remaining:
            self.log.append(f"finish {request.id}")
            usage = SegmentUsage(len(request.prompt), 0, 0, len(request.prompt), queue_s=0, prefill_s=0, decode_s=0)
            yield Delta(request.id, finish=Finish(FinishReason.LENGTH, request.state, usage))
            return
        gate = TextGate(ByteDetokenizer(self._bytes), request.state)
        counts = Counter(dict(request.state.counts))
        reserved = request.residency.reserve(request.remaining)
        for generated in range(1, request.remaining + 1):
            await asyncio.sleep(0)
            emitted = request.state.emitted + generated
            token_id = self.choose(request, generated)
            counts[token_id] += 1
            verdict = gate.feed(token_id)
            token = (Token(token_id, logprob=-emitted / 8),)
            mark = reason = None
            if isinstance(verdict, Stop):
                reason, text = verdict.reason, gate.close(verdict.drop)
            elif generated == request.remaining:
                reason, text = FinishReason.LENGTH, gate.close(0)
            else:
                text = gate.release()
                if isinstance(verdict, Boundary) or generated == reserved:
                    mark = self._decide(request, verdict, generated)
                    reason = FinishReason.FLUSH if mark.decision is Decision.FLUSH else None
                    reserved += request.residency.reserve(request.remaining - generated) if generated == reserved else 0
            if reason is None:
                yield Delta(request.id, token, text, mark)
                continue
            state = replace(
                request.state,
                emitted=emitted,
                counts=tuple(sorted(counts.items())),
                undecoded=gate.undecoded,
                held=gate.held,
                rules=gate.rules,
            )
            prompt = len(request.prompt)
            usage = SegmentUsage(prompt, 0, generated, prompt + generated - 1, queue_s=0, prefill_s=0, decode_s=0)
            self.log.append(f"finish {request.id}")
            yield Delta(request.id, token, text, mark, Finish(reason, state, usage))
            return

    def choose(self, request: SegmentRequest, generated: int) -> int:
        """Token `generated` of this request, counted from 1."""
        return self.script[(request.state.emitted + generated - 1) % len(self.script)]

    def _decide(self, request: SegmentRequest, verdict: Verdict, generated: int) -> BoundaryMark:
        kind = verdict.kind if isinstance(verdict, Boundary) else "cap"
        view = BoundaryView(kind, len(request.prompt) + generated - 1, generated, 0, free_blocks=0, waiting=0)
        return BoundaryMark(kind, request.residency.at_boundary(view))

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        return [0.0] * (len(ids) - start)

    def cancel(self, request_id: str) -> None:
        self.log.append(f"cancel {request_id}")

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:
        self.log.append(f"pause {request.id} {len(ids)}")

    def count(self, text: str) -> int:
        return len(text.encode())


class Reciter(FakeBackend):
    """Recites `answer` in a vocabulary of its own, from where the tail of the prompt ends in it.

    `piece` matches the next token's bytes anywhere in a text. Ids count from `first` as pieces turn up; below it are
    the ids of prompts. `known` bytes tell the place, so they must not occur twice in the answer.
    """

    known = 12

    def __init__(self, answer: str, piece: bytes, first: int, capabilities: Capabilities | None = None) -> None:
        super().__init__((), capabilities)
        self.answer, self.first = answer.encode(), first
        self._piece = re.compile(piece, re.DOTALL)
        self._at: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of any text."""
        return [self._id(piece) for piece in self._piece.findall(text.encode())]

    def text(self, ids: Iterable[int]) -> bytes:
        """The bytes of the ids that are no prompt's."""
        return b"".join(map(self.token_bytes, ids))

    def choose(self, request: SegmentRequest, generated: int) -> int:
        if generated == 1:
            self._at[request.id] = self._place(self.text(request.prompt))
        found = self._piece.match(self.answer, self._at[request.id])
        assert found is not None
        self._at[request.id] = found.end()
        return self._id(found[0])

    def _place(self, tail: bytes) -> int:
        if self.answer.startswith(tail):
            return len(tail)
        end = tail[-self.known :]
        assert self.answer.count(end) == 1
        return self.answer.index(end) + len(end)

    def _id(self, piece: bytes) -> int:
        token_id = self.ids.setdefault(piece, self.first + len(self.ids))
        self._bytes[token_id] = piece
        return token_id


def fake_capabilities(*, max_context: int = 4096, pool_tokens: int = 4096, exact: bool = True) -> Capabilities:
    """Blocks of 16 tokens, 100 bytes a token."""
    return Capabilities(
        token_ids=True,
        extend=True,
        generation_state=True,
        logprobs=True,
        score=True,
        exact=exact,
        max_context=max_context,
        kv_bytes_per_token=100,
        kv_budget=100 * pool_tokens,
        block_tokens=BLOCK_TOKENS,
    )
