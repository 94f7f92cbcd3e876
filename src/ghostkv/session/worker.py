"""A worker: a backend instance with a model, and all else that a turn on it needs.

Server, library and command line ask a worker; it settles what a client left open and refuses what is out of range.
Sessions as records do not exist here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ghostkv.backends.base import Backend
from ghostkv.config import EngineConfig
from ghostkv.errors import ContextLengthExceeded, InvalidRequest
from ghostkv.protocol.render import Template, head
from ghostkv.request import Message
from ghostkv.session.chain import TurnContext
from ghostkv.session.fit import pool_tokens
from ghostkv.session.limits import check_values
from ghostkv.session.loop import run
from ghostkv.session.turn import Event, Turn
from ghostkv.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # the embedded backend brings torch, which a worker over another backend does not need
    from ghostkv.backends.embedded import EmbeddedBackend

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

    @classmethod
    def embedded(
        cls, backend: EmbeddedBackend, config: EngineConfig, clock: Callable[[], float], name: str = ""
    ) -> Worker:
        """A worker over ghostkv's own engine; `name` stands for the checkpoint's own."""
        tokenizer, chat = backend.tokenizer, backend.template
        template = _no_template if chat is None else chat.render_ids
        return cls(
            name=name or backend.model.checkpoint.name,
            manifest=backend.model.manifest,
            backend=backend,
            tokenizer=tokenizer,
            context=TurnContext(_kept(template), tokenizer.token_bytes, tokenizer.eos_ids, clock),
            config=config,
            healthy=lambda: backend.healthy,
            close=backend.close,
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a raw prompt, with the BOS that the model's prompts start with."""
        tokenizer = self.tokenizer
        self._check_length(len(text), "prompt")
        bos = (tokenizer.bos_id,) if tokenizer.add_bos and tokenizer.bos_id is not None else ()
        return (*bos, *tokenizer.encode(text))

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
        if turn.messages:
            standing = turn.messages if self.context.policies(turn.residency).budget is None else head(turn.messages)
            self._check_length(sum(len(message.content) for message in standing), "messages")
            self.prompt_tokens(turn)  # rendered here, where the server is off its event loop, and kept
        settled = turn if turn.max_tokens else replace(turn, max_tokens=self._default_max_tokens(turn))
        check_values(settled, self.tokenizer.vocab_size)
        return settled

    def run(self, turn: Turn) -> AsyncGenerator[Event, None]:
        """Stream one answer; see `session.loop.run`."""
        return run(self.backend, turn, self.context)

    def prompt_tokens(self, turn: Turn) -> int:
        """Tokens of the client's own prompt."""
        return len(turn.prompt or self.context.template(turn.messages))

    def _check_length(self, characters: int, param: str) -> None:
        """Refuse by its length what is far too long to be worth tokenising."""
        least = characters // (_SHRINKS * self.tokenizer.longest_token)
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
        context, template = capabilities.max_context, self.context.template
        if self.context.policies(turn.residency).budget is None:
            context = min(context, pool_tokens(capabilities) + 1)  # the last token of an answer needs no slot
            standing = self.prompt_tokens(turn)
        else:
            standing = len(turn.prompt or template(head(turn.messages)))
        return max(1, min(context - standing, self.config.default_max_tokens, self.config.max_session_tokens))


def _kept(template: Template) -> Template:
    """`template` with its latest renderings kept: a request's choices and segments render the same messages."""

    @lru_cache(maxsize=_KEPT)
    def render(messages: tuple[Message, ...]) -> tuple[int, ...]:
        return tuple(template(messages))

    return lambda messages: render(tuple(messages))


def _no_template(messages: Sequence[Message]) -> Sequence[int]:
    raise InvalidRequest("this model has no chat template: send a raw prompt instead of messages", param="messages")
