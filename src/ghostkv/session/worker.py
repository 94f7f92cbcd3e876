"""A worker: a backend instance with a model, and all else that a turn on it needs.

Server, library and command line ask a worker; it settles what a client left open and refuses what is out of range.
Sessions as records do not exist here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ghostkv.backends.base import Backend, Load, Stats
from ghostkv.config import EngineConfig
from ghostkv.errors import ContextLengthExceeded, InvalidRequest, Unsupported
from ghostkv.protocol.render import Conversation, notes
from ghostkv.request import Message, Tool
from ghostkv.session.chain import Closed
from ghostkv.session.context import Rendering, TurnContext, policy_of, residency_of
from ghostkv.session.deterministic import OPEN, check_deterministic, with_residency
from ghostkv.session.fit import most_structure, pool_tokens
from ghostkv.session.limits import check_steering, check_values
from ghostkv.session.loop import run
from ghostkv.session.manifest import Manifest
from ghostkv.session.offered import check_offered
from ghostkv.session.placement import check_placement
from ghostkv.session.planned import run_plan
from ghostkv.session.planning import check_plan, plan_overhead
from ghostkv.session.start import FROM_THE_START, Start
from ghostkv.session.strict import check_strict
from ghostkv.session.turn import Event, LongPrompt, Turn
from ghostkv.text.tokenizer import Tokenizer
from ghostkv.text.tool_template import ToolTemplate

if TYPE_CHECKING:  # each brings what a worker over another does not need: torch, an HTTP client
    from ghostkv.backends.embedded import EmbeddedBackend
    from ghostkv.backends.remote import RemoteBackend
    from ghostkv.text.grammar import Grammars

_BITS = {"int8": 8, "bfloat16": 16, "float32": 32}  # of a weight
_KEPT = 16  # renderings
_SHRINKS = 4  # characters that a tokenizer's normaliser may make one of, at most


@dataclass(frozen=True, slots=True)
class Worker:
    """Everything that serves one model."""

    name: str
    """The id under which the model is served."""
    manifest: str
    """Equal manifests compute equal bits."""
    backend: Backend
    tokenizer: Tokenizer
    context: TurnContext
    config: EngineConfig
    healthy: Callable[[], bool]
    """Whether requests are served."""
    close: Callable[[], None]
    """Ends what is pending and frees the backend. May block for as long as one step."""
    template: str = ""
    """Source of the model's chat template."""
    strength: tuple[int, int] = (0, 0)
    """Weights of the model, and bits of one: what makes one worker stronger than another."""
    load: Callable[[], Load] | None = None
    """How busy the backend is; None where it does not say."""
    found: Callable[[Sequence[int], str], int] | None = None
    """How many tokens at the beginning of a prompt of a domain have KV in the pool, about now; None where it does not
    say."""
    stats: Callable[[], Stats] | None = None
    """What the backend holds and has counted; None where it does not say."""
    identity: Manifest | None = None
    """What `manifest` is the digest of, where that is known."""

    @classmethod
    def embedded(
        cls, backend: EmbeddedBackend, config: EngineConfig, clock: Callable[[], float], name: str = ""
    ) -> Worker:
        """A worker over ghostkv's own engine; `name` stands for the checkpoint's own.

        Raises ModelError where the model's chat template loses what a segment carries.
        """
        _check_template(backend)
        source = backend.model.checkpoint.template or ""
        identity = Manifest.of(backend.model.manifest, backend.tokenizer.digest, source)
        strength = (backend.model.checkpoint.shape.parameters, _BITS.get(config.dtype, 16))
        plain = cls._over(backend, identity, source, config, clock, name or backend.model.checkpoint.name)
        return replace(plain, strength=strength, found=backend.found_tokens)

    @classmethod
    def remote(cls, backend: RemoteBackend, config: EngineConfig, clock: Callable[[], float]) -> Worker:
        """A worker over another engine, named as its model is there. Raises what `embedded` does."""
        _check_template(backend)
        source = backend.text.template or ""
        identity = Manifest.of(backend.identity, backend.tokenizer.digest, source)
        return cls._over(backend, identity, source, config, clock, backend.name)

    @classmethod
    def _over(
        cls,
        backend: EmbeddedBackend | RemoteBackend,
        identity: Manifest,
        source: str,
        config: EngineConfig,
        clock: Callable[[], float],
        name: str,
    ) -> Worker:
        tokenizer, chat = backend.tokenizer, backend.template
        rendering = _kept(_no_template if chat is None else ToolTemplate(chat, tokenizer).render_ids)
        return cls(
            name=name,
            manifest=identity.digest,
            backend=backend,
            tokenizer=tokenizer,
            context=TurnContext(
                lambda messages: rendering(messages, ()),
                tokenizer.encode,
                tokenizer.token_bytes,
                tokenizer.eos_ids,
                clock,
                tool_template=rendering,
            ),
            config=config,
            healthy=lambda: backend.healthy,
            close=backend.close,
            template=source,
            load=backend.occupancy,
            stats=backend.snapshot,
            identity=identity,
        )

    @property
    def named(self) -> Manifest:
        """The manifest by its parts."""
        return self.identity or Manifest.of(self.manifest, self.tokenizer.digest, self.template)

    @property
    def grammars(self) -> Grammars:
        """Compiles grammars for the model's vocabulary."""
        return self.tokenizer.grammars

    def members(self) -> Mapping[str, Worker]:
        """Every worker that decodes segments, by the name that tells it from the others: here only this one."""
        return {f"{self.name}:{self.config.dtype}": self}

    def encode(self, text: str, residency: str = "") -> tuple[int, ...]:
        """Token ids of a raw prompt, with the BOS that the model's prompts start with.

        What is far too long for the policy called `residency` is refused unread; "" stands for the model's context.
        """
        tokenizer = self.tokenizer
        self._check_length(len(text), "prompt", residency)
        return (*tokenizer.prefix, *tokenizer.encode(text))

    def checked(self, turn: Turn) -> Turn:
        """The turn as it will run: max_tokens 0 becomes the default, and every value is in range.

        Raises InvalidRequest naming field and limit. What cannot fit is refused by `run`.
        """
        most = self.config.max_session_tokens
        if not turn.prompt and not turn.messages:
            raise InvalidRequest("the prompt is empty: at least one token is needed to continue", param="prompt")
        if turn.max_tokens < 0:
            raise InvalidRequest(f"max_tokens must be at least 1, not {turn.max_tokens}", param="max_tokens")
        if turn.max_tokens > most:
            raise InvalidRequest(
                f"max_tokens is {turn.max_tokens}, but a session may generate at most {most} tokens "
                f"(max_session_tokens)",
                param="max_tokens",
            )
        check_plan(turn)
        check_deterministic(turn, self.backend.capabilities(), len(self.members()))
        if turn.residency == OPEN:
            turn = self._with_residency(turn)
        self._check_scores(turn)
        self._check_grammar(turn)
        if turn.messages:
            standing = turn.messages if residency_of(turn, self.context).budget is None else self._head(turn)
            characters = sum(len(text) for message in standing for text in message.texts)
            characters += sum(len(tool.definition) for tool in turn.tools)
            condense = turn.long_prompt is LongPrompt.CONDENSE
            self._check_length(characters, "messages", turn.residency, condense=condense)
            self.prompt_tokens(turn)  # rendered here, where the server is off its event loop, and kept
        settled = turn
        if turn.generates and not turn.max_tokens:
            settled = replace(turn, max_tokens=self._default_max_tokens(turn))
        if self._windowed(turn.residency):
            tokens = self.prompt_tokens(turn) + settled.max_tokens
            self._check_session(tokens, "messages" if turn.messages else "prompt")
        check_values(settled, self.tokenizer.vocab_size)
        check_offered(settled, residency_of(turn, self.context), self.backend.capabilities())
        check_strict(settled, residency_of(turn, self.context), self.backend.capabilities())
        if settled.replay is not None:
            policy_of(settled, self.context)  # refuses what cannot be a record of it
        check_steering(settled, self.backend.capabilities().steering)
        if turn.messages and residency_of(turn, self.context).budget is not None:
            # Read here for the same reason.
            self.context.histories.memory(turn.messages, turn.tenant, turn.payload_budget)
        return settled

    def run(
        self, turn: Turn, closed: Closed = lambda _: None, start: Start = FROM_THE_START
    ) -> AsyncGenerator[Event, None]:
        """Stream one answer; see `session.loop.run` and, for one with a plan, `session.planned.run_plan`."""
        if turn.plan is not None:
            return run_plan(self.backend, turn, self.context, closed=closed)
        return run(self.backend, turn, self.context, closed=closed, start=start)

    def prompt_tokens(self, turn: Turn) -> int:
        """Tokens of the client's own prompt."""
        return len(turn.prompt or self.context.template_of(turn.tools)(turn.messages))

    def _with_residency(self, turn: Turn) -> Turn:
        texts = [text for message in turn.messages for text in message.texts]
        try:
            self._check_length(sum(map(len, texts)), "messages", OPEN)  # what is far too long is not rendered for this
        except ContextLengthExceeded:
            return replace(turn, residency="segment")
        return with_residency(turn, self.backend.capabilities(), self.prompt_tokens(turn))

    def _windowed(self, residency: str) -> bool:
        """Whether only the session's own limit bounds prompt and answer."""
        return bool(residency) and self.context.policies(residency).visible is not None

    def _check_scores(self, turn: Turn) -> None:
        """Log-probabilities of a prompt are those of the prompt as it was sent, read as a whole."""
        if turn.scores is None:
            return
        if not self.backend.capabilities().score:
            raise Unsupported("this backend gives no log-probabilities of a prompt", param="echo")
        if turn.plan is not None:
            raise InvalidRequest("log-probabilities of a prompt have no plan", param="ghostkv.plan")
        policy = residency_of(turn, self.context)
        if policy.budget is not None or policy.visible is not None:
            raise InvalidRequest(
                f"log-probabilities of a prompt (echo with logprobs) are those of residency 'full', not of "
                f"{policy.name!r}: leave ghostkv.residency out, or send 'full'",
                param="ghostkv.residency",
            )

    def _check_grammar(self, turn: Turn) -> None:
        """A structured answer ends where its grammar does, and needs a policy that lets go of nothing inside."""
        if turn.grammar is None:
            return
        if not self.backend.capabilities().grammar:
            param = "tools" if turn.tools else "response_format"
            raise Unsupported("this backend does not constrain its output", param=param)
        if turn.ignore_eos:
            raise InvalidRequest("a structured answer ends where its grammar does", param="ignore_eos")
        policy_of(turn, self.context)

    def _check_session(self, tokens: int, param: str) -> None:
        most = self.config.max_session_tokens
        if tokens > most:
            raise ContextLengthExceeded(
                f"a session has at most {most} tokens (max_session_tokens), but prompt and answer need {tokens}: "
                f"context_length_exceeded, it exceeds the available context size.",
                param=param,
            )

    def _head(self, turn: Turn) -> tuple[Message, ...]:
        return Conversation.of(turn.messages, self.context.template).head

    def _check_length(self, characters: int, param: str, residency: str, *, condense: bool = False) -> None:
        """Refuse by its length what is far too long to be worth tokenising."""
        least = characters // (_SHRINKS * self.tokenizer.longest_token)
        if self._windowed(residency) or condense:
            self._check_session(least, param)
            return
        context = self.backend.capabilities().max_context
        if least > context:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens, but the request needs more than {least}: "
                f"context_length_exceeded, it exceeds the available context size.",
                param=param,
            )

    def _default_max_tokens(self, turn: Turn) -> int:
        """What the context leaves, at most the configured default; at least 1, so that too long a prompt is refused.

        What counts as prompt is what stands in every segment: where a policy flushes, earlier exchanges make room.
        """
        capabilities = self.backend.capabilities()
        context, template = capabilities.max_context, self.context.template_of(turn.tools)
        if self._windowed(turn.residency):
            context, standing = self.config.max_session_tokens, self.prompt_tokens(turn)
        elif residency_of(turn, self.context).budget is None:
            context = min(context, pool_tokens(capabilities) + 1)  # the last token of an answer needs no slot
            standing = self.prompt_tokens(turn)
        else:
            standing = len(turn.prompt or template(self._head(turn)))
            if turn.long_prompt is LongPrompt.CONDENSE:
                standing = min(standing, context // 2)
        standing += plan_overhead(turn, self.context)
        fits = context - standing
        if turn.grammar is not None:
            policy = residency_of(turn, self.context)
            fits = most_structure(policy, capabilities, prompt=self.prompt_tokens(turn), head=standing)
        return max(1, min(fits, self.config.default_max_tokens, self.config.max_session_tokens))


def _check_template(backend: EmbeddedBackend | RemoteBackend) -> None:
    tokenizer, chat = backend.tokenizer, backend.template
    if chat is not None:
        check_placement(chat.render_ids, notes, tokenizer.encode, tokenizer.decode)


def _kept(template: Rendering) -> Rendering:
    """`template` with its latest renderings kept: a request's choices and segments render the same messages.

    The same, not equal ones: how long a rendering takes must not tell what others have sent.
    """

    @lru_cache(maxsize=_KEPT)
    def render(same: _Same) -> tuple[int, ...]:
        return tuple(template(same.messages, same.tools))

    return lambda messages, tools: render(_Same(tuple(messages), tools))


class _Same:
    """Messages and tools that equal others only if they are the same objects."""

    __slots__ = ("_ids", "messages", "tools")

    def __init__(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> None:
        self.messages, self.tools = messages, tools  # held, so that no other object gets one of the ids
        self._ids = tuple(map(id, messages)), tuple(map(id, tools))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._ids == self._ids

    def __hash__(self) -> int:
        return hash(self._ids)


def _no_template(messages: Sequence[Message], tools: tuple[Tool, ...]) -> Sequence[int]:
    raise InvalidRequest("this model has no chat template: send a raw prompt instead of messages", param="messages")
