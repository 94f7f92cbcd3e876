"""What the continuity loop takes and what it streams back: the values between server or CLI and session."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from ghostkv.protocol.payload import DEFAULT_BUDGET
from ghostkv.protocol.plan import Node, Plan
from ghostkv.request import (
    NO_STEERING,
    BoundaryMark,
    FinishReason,
    Grammar,
    Message,
    PromptScores,
    Sampling,
    SegmentUsage,
    Steering,
    Token,
    Tool,
)
from ghostkv.residency import DEFAULT_RESIDENCY


class LongPrompt(StrEnum):
    """What to do with a question that does not fit."""

    REFUSE = "refuse"
    CONDENSE = "condense"  # keep its beginning and its end; ledger and recall have read the rest


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
    residency: str = DEFAULT_RESIDENCY
    replay: tuple[int, ...] | None = None  # output tokens before each flush that a record says; None: decide anew
    seeded: bool = False  # the client chose the seed
    tenant: str = ""  # whose it is
    program: str = ""  # of that tenant's, the agent or session that it belongs to; "": none in particular
    share_group: str = ""  # of tenants that find each other's cached blocks; "": none but its own
    steering: Steering = NO_STEERING
    payload_budget: int = DEFAULT_BUDGET  # bytes
    long_prompt: LongPrompt = LongPrompt.REFUSE
    plan: Plan | Literal["auto", "model"] | None = None  # None: one open chain
    deadline_s: float | None = None  # seconds that the client waits for all of it; who runs the turn sees to it
    strict: bool = False  # refuse it rather than answer it inexactly
    deterministic: bool = False  # refuse it where its bits may depend on what else runs; `residency` may be left open
    generates: bool = True  # False: a raw prompt that is only read; max_tokens is 0
    scores: PromptScores | None = None  # of a raw prompt
    grammar: Grammar | None = None  # what the answer's text must match; such an answer is one segment
    tools: tuple[Tool, ...] = ()  # that the prompt defines, in each of its segments
    part: bool = False  # a node of a plan, whose text depends on the request alone

    @property
    def repeatable(self) -> bool:
        """Whether the client asked for an answer that can be had again."""
        return self.seeded or self.sampling.temperature == 0

    @property
    def trust(self) -> str:
        """Who finds its cached blocks: its tenant, or its share group. No tenant is called like a group."""
        return f"group:{self.share_group}" if self.share_group else f"tenant:{self.tenant}"


@dataclass(frozen=True, slots=True)
class Output:
    """Newly generated tokens and newly final text, or newly read tokens of the client's prompt."""

    tokens: tuple[Token, ...]
    text: str
    resident: int = 0  # tokens in the pool by then of the engine request that generated them; 0: not said
    prompt: tuple[Token, ...] = ()  # of a raw prompt, the next ones whose log-probabilities were asked for
    kept: BoundaryMark | None = None  # the boundary after its last token, where the whole history went on


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds of a segment's boundary work on the session's side. What the engine spends on it is in SegmentUsage."""

    recall: float = 0.0  # choosing what to show, before the segment
    render: float = 0.0  # assembling its prompt
    extract: float = 0.0  # reading what it generated
    merge: float = 0.0  # adding that to the payload and the archive


NO_WORK = Phases()


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One finished segment, as tables and traces show it. Tokens; bytes."""

    index: int
    usage: SegmentUsage
    boundary: BoundaryMark | None  # None when generation ended here
    live_kv_bytes: int  # this request's slots at its end, whole blocks
    phases: Phases = NO_WORK
    decisions: tuple[BoundaryMark, ...] = ()  # all that were taken for it, in order
    tail: int = 0  # prompt tokens that repeated the end of the open answer
    state: int = 0  # prompt tokens of the state block
    recalled: int = 0  # prompt tokens of recalled sentences
    dropped: int = 0  # tokens of the client's prompt that it did not see
    payload_bytes: int = 0  # after it
    payload_dropped: int = 0  # facts let go for the payload's byte budget, so far
    density: float = 0.0  # of what it generated, 0 to 1
    node: int = 0  # of the plan
    worker: str = ""  # that decoded it, where there is more than one; token ids are of its vocabulary
    reason: str = ""  # why that one
    restored: int = 0  # tokens of it that were generated before a restart, and prefilled again after it

    @property
    def rehydrated(self) -> int:
        """Prompt tokens that had to be prefilled because a boundary was flushed: none in a turn's first segment."""
        return self.usage.prompt_tokens - self.usage.cached_tokens if self.index else 0

    @property
    def recomputed(self) -> int:
        """Of those, at least how many had been computed before: all but the notes are the client's or the tail."""
        return max(0, self.rehydrated - self.state - self.recalled)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node of a plan, and what was decided for it."""

    node: Node
    note: str  # what was added to the question
    prompt_tokens: int  # of the conversation with the note
    digest: str  # of those tokens' ids
    max_tokens: int  # its first share; what nodes before it leave unused is added


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The plan that an answer followed, and where it came from."""

    source: str  # "given", "auto" or "model"
    nodes: tuple[NodeRecord, ...]
    outline: str = ""  # what the model answered when it was asked for one
    outline_tokens: int = 0  # generated for it; not part of the answer
    said: str = ""  # why a plan that was asked for became one open node
    seconds: float = 0.0  # that choosing it took, an outline's generation included


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a turn."""

    reason: FinishReason
    prompt_tokens: int  # the client's own prompt, counted once
    completion_tokens: int
    exact: bool  # no boundary was flushed
    unseen_tokens: int  # prompt tokens of the client that the last segment did not see
    segments: tuple[SegmentRecord, ...] = field(default=())
    condensed_tokens: int = 0  # of the unseen ones, those of a question that was too long
    discarded_tokens: int = 0  # generated by nodes of the plan that then were not needed
    plan: PlanRecord | None = None
    digest: str = ""  # of all that determines the answer besides the model; see `session.digest`


Event = Output | SegmentRecord | Finished
