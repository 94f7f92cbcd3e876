"""The values that every layer shares: what a segment asks for and what it gives back.

Everything here is a frozen value or a protocol. Nothing here decides, and nothing here knows text templates, blocks or
tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ghostkv.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:  # a name for readers and checkers: these values need no numpy to be imported
    import numpy as np
    import numpy.typing as npt

    Bitmask: TypeAlias = npt.NDArray[np.uint32]  # [ceil(vocabulary / 32)]: bit i % 32 of word i // 32 is token id i
else:
    Bitmask = object

STEERING_UNIT = 1 / 32  # of a coefficient, which is carried as an int8 in these units


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that an assistant message makes."""

    id: str
    name: str
    arguments: str  # JSON text as the client sent it; models write it, so it may be no JSON at all


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that an answer may call."""

    name: str
    definition: str  # JSON text: {"type": "function", "function": {...}}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: str  # "system", "developer", "user", "assistant" or "tool"
    content: str
    ids: tuple[int, ...] = ()  # that `content` was generated as, where they are known: used in place of its tokens
    tool_calls: tuple[ToolCall, ...] = ()  # of an assistant message
    tool_call_id: str = ""  # of a tool message: the call whose result it is
    name: str = ""  # of whoever speaks; of a tool message, the function

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text in it that a client wrote, the content first."""
        calls = (part for call in self.tool_calls for part in (call.name, call.arguments))
        return (self.content, self.name, *calls)


class FinishReason(StrEnum):
    """Why an engine request ended."""

    STOP = "stop"  # end-of-sequence token or stop string
    LENGTH = "length"  # max_tokens, or the session's own limit
    FLUSH = "flush"  # a boundary was flushed: the session goes on in another request
    CANCELLED = "cancelled"  # the client went away
    DEADLINE = "deadline"  # its answer could not be complete in time
    DEAD_END = "dead_end"  # the grammar allows no token here, and the answer is not complete


class Decision(StrEnum):
    """What a residency policy does at a boundary."""

    KEEP = "keep"
    FLUSH = "flush"


@dataclass(frozen=True, slots=True)
class Continue:
    """Verdict: nothing happens here."""


CONTINUE = Continue()


@dataclass(frozen=True, slots=True)
class Boundary:
    """Verdict: a segment may end after this token."""

    kind: str  # "paragraph", "sentence", "item", "line", "cap", "fixed"


@dataclass(frozen=True, slots=True)
class Stop:
    """Verdict: generation ends after this token."""

    reason: FinishReason
    drop: int = 0  # characters at the end of the text that are not output (the stop string itself)


Verdict = Continue | Boundary | Stop


class Rule(Protocol):
    """One condition on the token stream.

    A rule is a frozen value, so a rule that counts or matches returns its successor. That is what lets a request hand
    its rules to the next one, and lets rejected speculative tokens cost nothing.
    """

    @property
    def held(self) -> int:
        """Characters at the end of the text that a later verdict may still drop."""
        ...

    def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
        """Take one token and the text that it completed; return (successor, verdict)."""
        ...


class Matcher(Protocol):
    """How far one answer has come in its grammar. Mutable, and owned by one running request.

    `accept` comes after each token, then `allowed` says what may follow. Neither raises for what a grammar does: a
    matcher that cannot go on allows nothing and says why in `failure`.
    """

    @property
    def complete(self) -> bool:
        """Whether the text so far matches the whole grammar and nothing can follow but the end."""
        ...

    @property
    def failure(self) -> str:
        """Why nothing can follow although the text is not complete; "" while something can."""
        ...

    def allowed(self) -> Bitmask:
        """The ids that may come next, a new array. End-of-sequence ids are among them iff the text so far matches."""
        ...

    def accept(self, token_id: int) -> None:
        """Take the next token."""
        ...

    def fork(self) -> Matcher:
        """Another one that has come as far; what either takes from here on, the other does not see."""
        ...


class Grammar(Protocol):
    """What the text of an answer must match, compiled for one vocabulary. A frozen value, shared by requests."""

    @property
    def digest(self) -> str:
        """Of its text: equal ones allow the same."""
        ...

    def start(self) -> Matcher:
        """A matcher at the beginning of an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. Neutral values switch a feature off."""

    temperature: float = 1.0  # 0 is greedy: the largest logit, lowest id on a tie
    top_k: int = 0  # 0: all tokens; ties with the k-th are kept
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most probable token
    repetition_penalty: float = 1.0  # over the client's text and the output
    presence_penalty: float = 0.0  # over the output
    frequency_penalty: float = 0.0  # over the output
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None  # None: none; n: the chosen token's and the n best
    min_tokens: int = 0  # `terminators` cannot be chosen before this many output tokens
    terminators: tuple[int, ...] = ()
    seed: int = 0
    choice: int = 0  # index of this answer among the request's `n`
    node: int = 0  # index of the plan's node

    @property
    def penalised(self) -> bool:
        """Whether any penalty is active."""
        neutral = (1.0, 0.0, 0.0)
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != neutral


@dataclass(frozen=True, slots=True)
class GenerationState:
    """What belongs to the session and not to one request, so that a boundary leaves no trace in the output.

    Each request takes one and each finish returns one.
    """

    emitted: int = 0  # output tokens so far, over all segments
    client_ids: frozenset[int] = frozenset()  # distinct ids of the client's own text, for the repetition penalty
    counts: tuple[tuple[int, int], ...] = ()  # (id, occurrences in the output), ascending by id
    undecoded: bytes = b""  # bytes of a character that is not complete yet
    held: str = ""  # text that a stop string may still swallow
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class BoundaryView:
    """What a residency policy may look at when it decides. Read-only."""

    kind: str
    resident: int  # tokens of this request in the pool
    generated: int  # tokens generated in this request
    unreserved: int  # output tokens still allowed for which no slot is reserved
    free_blocks: int  # free or evictable
    waiting: int  # requests in line
    reserved: int = 0  # output tokens that still fit into what is reserved
    gain: float = 0.0  # see `engine.controller.Controller.gain`; 0.0 where flushing frees nothing that is wanted
    waited_s: float = 0.0  # that the request longest in line has waited
    max_wait_s: float = 0.0  # that a request should wait at most while others have their turn
    turns: float = 0.0  # flushes whose only gain is somebody's turn, that the time spent so far pays for
    repeatable: bool = False  # its client asked for an answer that can be had again
    others: int = 0  # running requests that may be flushed instead, none of them repeatable


@dataclass(frozen=True, slots=True)
class Window:
    """Which tokens a query sees: the first `sinks` and the last `recent`, itself included (StreamingLLM, Xiao 2024).

    What is seen is numbered without a gap, and those numbers are the positions that keys and query are rotated by.
    """

    sinks: int
    recent: int

    def __post_init__(self) -> None:
        if self.sinks < 0 or self.recent < 1:
            raise ConfigError(f"{self} lets a token not even see itself")

    @property
    def size(self) -> int:
        """The most tokens that are seen."""
        return self.sinks + self.recent


class Residency(Protocol):
    """A residency policy as the engine sees it: how much to reserve, what is seen, and what to do at a boundary."""

    @property
    def name(self) -> str:  # read-only, so that a frozen dataclass satisfies it
        """What a request calls it by."""
        ...

    @property
    def visible(self) -> Window | None:
        """The window that every query sees through; None: each sees all tokens before it."""
        ...

    def reserve(self, remaining: int) -> int:
        """Output tokens to reserve at admission, at least 1; `remaining` is what the session may still generate."""
        ...

    def at_boundary(self, view: BoundaryView) -> Decision:
        """Keep or flush.

        Keeping a request whose reservation is used up needs `extend`; where that fails it is flushed.
        """
        ...


@dataclass(frozen=True, slots=True)
class Steering:
    """Control vectors of the shared bank and how strongly each is added (TGP R6). Empty: off."""

    parts: tuple[tuple[str, int], ...] = ()  # (vector, int8 coefficient in STEERING_UNITs), ascending; none is 0

    @classmethod
    def of(cls, coefficients: Mapping[str, float]) -> Steering:
        """Quantised: 1.0 adds 10 % of the residual norm; what rounds to 0 is left out. Raises InvalidRequest."""
        for name, value in coefficients.items():
            if not -4 <= value <= 127 * STEERING_UNIT:  # true for NaN as well
                message = f"steering: {name[:40]!r} must be between -4 and {127 * STEERING_UNIT}, not {value}"
                raise InvalidRequest(message, param="steering")
        steps = {name: round(value / STEERING_UNIT) for name, value in sorted(coefficients.items())}
        return cls(tuple((name, count) for name, count in steps.items() if count))

    def __bool__(self) -> bool:
        """Whether anything is added."""
        return bool(self.parts)


NO_STEERING = Steering()


def domain(tenant: str, steering: Steering = NO_STEERING) -> str:
    """All that a block's KV and its sharing depend on besides the tokens: requests of other domains share none."""
    vectors = ",".join(f"{len(name)}:{name}{steps:+d}" for name, steps in steering.parts)
    return f"{len(vectors)}:{vectors}{tenant}"


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Asks for the log-probabilities of a prompt's own tokens from index `start` on, each given all before it."""

    start: int = 1  # nothing stands before token 0, so it has none
    best: int = 0  # most probable tokens to name beside each

    def __post_init__(self) -> None:
        if self.start < 1:
            raise InvalidRequest(f"scoring starts at token {self.start}, but the first has none", param="start")


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """One engine request: a prompt to continue, or with `remaining` 0 only to be read."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    state: GenerationState
    residency: Residency
    remaining: int  # output tokens that the session may still generate, this request included
    tenant: str = ""  # or group of tenants, that may find its blocks
    steering: Steering = NO_STEERING
    begun: bool = False  # part of an answer of which another request has begun: a full line does not turn it away
    grammar: Grammar | None = None  # what the output must match from its first token on; then nothing is flushed
    scores: PromptScores | None = None
    account: str = ""  # whom it is charged to: its tenant, whatever group that shares blocks with
    program: str = ""  # of that tenant's, the agent or session that it belongs to; "": none in particular
    deadline_s: float | None = None  # from when it gets in line to the end of its answer
    flushed_prompt: int = 0  # tokens it would go on from if flushed at its next boundary; 0: that is never weighed
    repeatable: bool = False  # greedy, or with a seed that its client chose: flushed after others

    @property
    def domain(self) -> str:
        """See `domain`."""
        return domain(self.tenant, self.steering)


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token, or one of a prompt whose log-probability was asked for."""

    id: int
    logprob: float | None = None  # natural log, of the unmodified distribution
    top: tuple[tuple[int, float], ...] = ()  # best first


@dataclass(frozen=True, slots=True)
class BoundaryMark:
    """A boundary that was decided."""

    kind: str
    decision: Decision
    reason: str = ""  # of a flush: "policy", or what kept it from going on: "memory", "context", "prompt"
    at: int = 0  # output tokens of the session so far
    gain: float = 0.0  # that a flush was predicted to give; see `engine.controller.Controller.gain`
    waited_s: float = 0.0  # that the request longest in line had waited
    waiting: int = 0  # requests in line


@dataclass(frozen=True, slots=True)
class SegmentUsage:
    """What one engine request cost."""

    prompt_tokens: int
    cached_tokens: int  # prompt tokens whose KV was found in the index
    generated_tokens: int
    resident_tokens: int  # slots filled at the end
    queue_s: float
    prefill_s: float  # wall time of the steps in which this request prefilled
    decode_s: float  # wall time of the steps in which it decoded


@dataclass(frozen=True, slots=True)
class Finish:
    """How a request ended, and the state that the next one takes."""

    reason: FinishReason
    state: GenerationState
    usage: SegmentUsage
    note: str = ""  # what led to a dead end, or why the deadline could not be met


@dataclass(frozen=True, slots=True)
class Delta:
    """What one new token gave one request, or a step without one. A step may give a request several, in order."""

    request_id: str
    tokens: tuple[Token, ...] = ()
    text: str = ""  # text that is now final; may lag behind `tokens`
    boundary: BoundaryMark | None = None
    finish: Finish | None = None
    prompt: tuple[Token, ...] = ()  # the next ones of the prompt, where their log-probabilities were asked for
