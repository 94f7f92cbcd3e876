"""What the continuity loop takes and what it streams back: the values between server or CLI and session."""

from __future__ import annotations

from dataclasses import dataclass, field

from ghostkv.request import BoundaryMark, FinishReason, Message, Sampling, SegmentUsage, Token


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer that a client asked for: either a conversation or a raw prompt."""

    id: str
    sampling: Sampling
    max_tokens: int
    messages: tuple[Message, ...] = ()
    prompt: tuple[int, ...] = ()  # token ids of a raw completion; empty for a conversation
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()  # besides the model's own end-of-sequence ids
    ignore_eos: bool = False
    residency: str = "segment"
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """Newly generated tokens and newly final text."""

    tokens: tuple[Token, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One finished segment, as tables and traces show it. Seconds; bytes."""

    index: int
    usage: SegmentUsage
    boundary: BoundaryMark | None  # None when generation ended here
    live_kv_bytes: int  # this request's slots at its end, whole blocks
    extract_s: float
    render_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a turn."""

    reason: FinishReason
    prompt_tokens: int  # the client's own prompt, counted once
    completion_tokens: int
    exact: bool  # no boundary was flushed
    unseen_tokens: int  # prompt tokens of the client that the last segment did not see
    segments: tuple[SegmentRecord, ...] = field(default=())


Event = Output | SegmentRecord | Finished
