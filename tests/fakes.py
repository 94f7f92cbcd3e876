"""Small stand-ins that several test modules share."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from ghostkv.request import CONTINUE, Boundary, BoundaryView, Decision, FinishReason, Stop, Token, Verdict
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

    It writes each row's tokens through the row's block table and reads the whole history back through it, so a wrong table,
    position or cache hit gives a script a wrong history, as it would give attention wrong keys.
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
            if row.draw is not None:
                positions = np.arange(row.start + len(row.tokens))
                slots = row.table[positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
                tokens.append(Token(self._script(tuple(self._memory[slots].tolist()), row.draw)))
        return StepResult(tuple(tokens), self._seconds)


def history_script(vocabulary: int) -> Script:
    """A token that depends on every earlier token and on everything in the draw; never a masked one if there is another."""

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
