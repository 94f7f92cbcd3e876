"""The library's front door: a synchronous facade over one worker. No server, no terminal.

It runs an event loop on a thread of its own, so it can be called from any thread, and from several at once.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self, TypedDict, TypeVar, Unpack
from uuid import uuid4

from ghostkv.engine.stats import StepTrace
from ghostkv.errors import EngineFault, InvalidRequest
from ghostkv.launch import DEFAULT_RESIDENCY, Settings, engine_config, open_worker
from ghostkv.request import FinishReason, Message, Sampling, Token
from ghostkv.session.turn import Event, Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

_SAMPLING = frozenset(field.name for field in fields(Sampling)) - {"terminators", "choice", "node"}

T = TypeVar("T")
Conversation = Sequence[Message | Mapping[str, str]]


class Options(TypedDict, total=False):
    """What a call may say besides its prompt. Names and meanings are those of `Turn` and `Sampling`."""

    max_tokens: int
    residency: str
    stop: Sequence[str]
    stop_ids: Sequence[int]
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int
    min_tokens: int
    seed: int | None  # None: drawn at random


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. As a string it is its text."""

    text: str
    finish_reason: str  # "stop" or "length"
    exact: bool  # the output is that of a run that kept its whole history
    residency: str
    prompt_tokens: int
    completion_tokens: int
    unseen_tokens: int  # prompt tokens that the last segment did not see
    segments: tuple[SegmentRecord, ...]
    tokens: tuple[Token, ...]

    def __str__(self) -> str:
        """The text."""
        return self.text


class LLM:
    """A model that answers. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        model: str | Worker = "smollm2",
        *,
        residency: str = DEFAULT_RESIDENCY,
        announce: Callable[[str], None] = lambda _: None,
        on_step: Callable[[StepTrace], None] | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        """Load a model; raises what `open_worker` raises.

        Args:
            model: A known name, pulled if absent, the path of a .gguf file or a Hugging Face directory, or a worker
                that runs already, which then is closed with the facade.
            residency: Policy of calls that name none: "segment" or "full".
            announce: Told what takes long.
            on_step: Told of every engine step, on the engine's thread.
            **settings: See `Settings`.
        """
        if isinstance(model, str):
            model = open_worker(
                model, engine_config(**settings), residency=residency, announce=announce, on_step=on_step
            )
        self.worker = model
        self._residency = residency
        self._gate = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ghostkv-llm", daemon=True)
        self._thread.start()

    def generate(self, prompt: str, **options: Unpack[Options]) -> Answer:
        """Answer one user message. Raises InvalidRequest naming the option that is wrong."""
        return self.chat([Message("user", prompt)], **options)

    def chat(self, messages: Conversation, **options: Unpack[Options]) -> Answer:
        """Answer a conversation; each message is a Message or a mapping with "role" and "content"."""
        return self.answer(self.turn(messages, **options))

    def complete(self, prompt: str, **options: Unpack[Options]) -> Answer:
        """Continue raw text, without a chat template."""
        return self.answer(self.turn(prompt, **options))

    def stream(self, prompt: str | Conversation, **options: Unpack[Options]) -> Iterator[str]:
        """The pieces of an answer as they become final. A string is one user message. Closing the iterator cancels."""
        messages: Conversation = [Message("user", prompt)] if isinstance(prompt, str) else prompt
        for event in self.events(self.turn(messages, **options)):
            if isinstance(event, Output) and event.text:
                yield event.text

    def turn(self, prompt: str | Conversation, **options: Unpack[Options]) -> Turn:
        """A checked turn: raw text is continued, a conversation is answered."""
        given: dict[str, Any] = dict(options)
        sampling = {name: given.pop(name) for name in _SAMPLING & given.keys()}
        if sampling.get("seed") is None:
            sampling["seed"] = secrets.randbits(63)
        sampling["logit_bias"] = tuple(dict(sampling.get("logit_bias", {})).items())
        for name in ("stop", "stop_ids"):
            given[name] = tuple(given.get(name, ()))
        given.setdefault("residency", self._residency)
        given.setdefault("max_tokens", 0)
        return self.worker.checked(
            Turn(
                id=uuid4().hex,
                sampling=Sampling(**sampling),
                messages=() if isinstance(prompt, str) else tuple(map(_message, prompt)),
                prompt=self.worker.encode(prompt) if isinstance(prompt, str) else (),
                **given,
            )
        )

    def answer(self, turn: Turn) -> Answer:
        """Run a turn to its end."""
        text: list[str] = []
        tokens: list[Token] = []
        for event in self.events(turn):
            if isinstance(event, Output):
                text.append(event.text)
                tokens += event.tokens
            elif isinstance(event, Finished):
                return _answer("".join(text), tuple(tokens), turn, event)
        raise EngineFault(f"the answer to {turn.id} has no end")

    def events(self, turn: Turn) -> Iterator[Event]:
        """Everything that happens in a turn. Closing the iterator cancels it."""
        stream = self.worker.run(turn)
        running = asyncio.Lock()  # an interrupted `following` must have let go of the stream before it can be closed

        async def following() -> Event | None:
            async with running:
                return await anext(stream, None)

        async def close() -> None:
            async with running:
                await stream.aclose()

        try:
            while (event := self._wait(following())) is not None:
                yield event
        finally:
            with suppress(EngineFault):  # closed in the meantime, and the stream with it
                self._wait(close())

    def close(self) -> None:
        """Cancel what is pending and free the model. A second call does nothing."""
        self.worker.close()
        with self._gate:
            was_closed, self._closed = self._closed, True
        if was_closed:
            return
        asyncio.run_coroutine_threadsafe(_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        """The facade itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        with self._gate:  # so that no work is handed to a loop that will not run it
            if self._closed:
                work.close()
                raise EngineFault("this model was closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


async def _others() -> None:
    """Wait for what other threads still have on this loop; with the engine closed it ends by itself."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others)


def _message(given: Message | Mapping[str, str]) -> Message:
    if isinstance(given, Message):
        return given
    if given.keys() != {"role", "content"}:
        raise InvalidRequest(f"a message has a role and a content, not {', '.join(given)}", param="messages")
    return Message(given["role"], given["content"])


def _answer(text: str, tokens: tuple[Token, ...], turn: Turn, end: Finished) -> Answer:
    if end.reason is FinishReason.CANCELLED:
        raise EngineFault("the answer was cancelled before its end")
    return Answer(
        text=text,
        finish_reason=end.reason.value,
        exact=end.exact,
        residency=turn.residency,
        prompt_tokens=end.prompt_tokens,
        completion_tokens=end.completion_tokens,
        unseen_tokens=end.unseen_tokens,
        segments=end.segments,
        tokens=tokens,
    )
