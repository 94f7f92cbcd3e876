"""The live page's chat box: one conversation of one browser tab, answered on the same path as a request to the API."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from nicegui import ui

from ghostkv.errors import GhostError, Interrupted
from ghostkv.page.chat_answer import ChatAnswer
from ghostkv.page.conversation import Conversation, Wish
from ghostkv.request import Message
from ghostkv.residency import DEFAULT_RESIDENCY, names
from ghostkv.server.access import Tenant
from ghostkv.server.serving import Serving

_log = logging.getLogger(__name__)
_PUSH_S = 0.25
"""Between two updates of an answer that is being written."""


class Chat:
    """Builds itself where it is made. Nothing of it outlives the tab."""

    def __init__(self, serving: Serving, tenant: Tenant, begun: Callable[[str], None]) -> None:
        """`tenant`: whose answers they are; `begun` is told the id of each."""
        self._conversation = Conversation(serving, tenant)
        self._begun = begun
        self._history: list[Message] = []
        self._task: asyncio.Task[None] | None = None
        with ui.element("section").classes("panel chat"):
            with ui.element("div").classes("controls"):
                ui.label("Chat").classes("h2")
                ui.space()
                ui.button("new", icon="add", on_click=self._clear).props("flat dense no-caps size=sm")
            with ui.element("div").classes("log"):
                self._entries = ui.element("div").classes("entries")
            self._hint()
            self._text = ui.textarea(placeholder="Message: Enter sends, Shift+Enter breaks the line")
            self._text.props('outlined dense autogrow input-style="max-height: 140px" aria-label="message"')
            self._text.on("keydown.enter.exact.prevent", self._send)
            self._controls()
        ui.context.client.on_delete(self._conversation.end)

    def _controls(self) -> None:
        with ui.element("div").classes("controls"):
            self._residency = ui.select(list(names()), value=DEFAULT_RESIDENCY, label="residency")
            self._tokens = ui.number("most tokens", value=400, min=1, precision=0)
            self._temperature = ui.number("temperature", value=0.7, min=0, max=2, step=0.1)
            for control in (self._residency, self._tokens, self._temperature):
                control.props("dense outlined").classes("control")
            self._button = ui.button(icon="send", on_click=self._press).props('unelevated aria-label="send"')
            self._button.classes("send")

    async def _press(self) -> None:
        if self._task is None:
            await self._send()
        else:
            await self._conversation.stop()

    async def _send(self) -> None:
        text = str(self._text.value or "").strip()
        if not text or self._task is not None:
            return
        wish = Wish(str(self._residency.value), int(self._tokens.value or 0), float(self._temperature.value or 0.0))
        if not self._history:
            self._entries.clear()
        self._text.value = ""
        with self._entries, ui.element("div").classes("said user"):
            ui.label(text).classes("text")
        self._history.append(Message("user", text))
        await self._answer(wish)

    async def _answer(self, wish: Wish) -> None:
        """Show an answer as it is written, until it ends or is stopped."""
        history = self._history  # "new" begins another
        with self._entries:
            shown = ChatAnswer(time.monotonic)
        self._task = task = asyncio.create_task(self._read(tuple(history), wish, shown))
        self._busy("stop", "stop")
        while not task.done():
            await asyncio.wait({task}, timeout=_PUSH_S)
            shown.push()
        self._task = None
        self._busy("send", "send")
        shown.close(_failure(task))
        if shown.text:
            history.append(Message("assistant", shown.text))
        else:
            history.pop()  # the question; it may be asked again

    async def _read(self, messages: tuple[Message, ...], wish: Wish, shown: ChatAnswer) -> None:
        reading = await self._conversation.ask(messages, wish)
        self._begun(reading.record.id)
        try:
            async for _, event in reading:
                shown.take(event)
        finally:
            reading.close()

    def _busy(self, icon: str, name: str) -> None:
        if not self._button.is_deleted:
            self._button.props(f'icon={icon} aria-label="{name}"')

    async def _clear(self) -> None:
        await self._conversation.end()
        self._history = []
        self._entries.clear()
        self._hint()

    def _hint(self) -> None:
        with self._entries:
            ui.label(
                "Ask for something long and watch the cache: it is filled segment by segment, flushed at each boundary."
            ).classes("hint")


def _failure(task: asyncio.Task[None]) -> str:
    """Why an answer has ended before its end; "" if it has not."""
    if task.cancelled():
        return "cut off"
    error = task.exception()
    if error is None:
        return ""
    if isinstance(error, GhostError):
        return "stopped" if isinstance(error, Interrupted) else error.message
    _log.error("the chat box failed", exc_info=error)
    return f"an unexpected {type(error).__name__}; see the server's log"
