"""The page at `/`: the server, live, and a box to chat with it. Mounts NiceGUI into the API's application.

Nothing here runs while nobody looks. All files come from this machine. One per process: NiceGUI is a singleton.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from nicegui import core, ui
from starlette.requests import HTTPConnection
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ghostkv.page.board import Board
from ghostkv.page.charts import PALETTE
from ghostkv.page.chat import Chat
from ghostkv.page.live import Live
from ghostkv.page.style import SHEET
from ghostkv.server.access import Tenant, admin_of, tenant_of
from ghostkv.server.serving import Serving

PATH = "/page"
"""Where the page's own files are. The page itself answers at `/` as well."""
_RECONNECT_S = 10.0
_TAB_S = 600.0
_RESENT = 60
"""Messages that are kept for a browser that was cut off for a moment."""
_ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><path d="M2 28 V10 L11 28 V10 L20 28 V10 L29 28 V10" '
    'fill="none" stroke="#3b82f6" stroke-width="3.5" stroke-linejoin="round"/></svg>'
)
_LOOKS = {"auto": None, "light": False, "dark": True}
_WATCH = "document.addEventListener('visibilitychange', () => emitEvent('seen', !document.hidden))"


def mount_page(app: FastAPI, serving: Serving, live: Live) -> None:
    """Add the page to `app`, for all who have an admin key, or for everyone where there are no keys.

    Answers and steps must reach `live`.
    """
    live.begin(serving.worker)

    @ui.page("/", title=f"{serving.worker.name} – ghostkv", dark=None)
    def page(request: Request) -> None:
        _build(serving, live, tenant_of(request))

    ui.run_with(
        app,
        mount_path=PATH,
        favicon=_ICON,
        binding_refresh_interval=None,
        reconnect_timeout=_RECONNECT_S,
        message_history_length=_RESENT,
        tailwind=False,
        show_welcome_message=False,
    )
    core.app.storage.max_tab_storage_age = _TAB_S
    app.router.routes.pop()  # what run_with mounted, which everyone could ask
    files = Mount(PATH, _Gate(core.app, PATH))
    app.router.routes += [files, Route("/", _Front(_Gate(core.app, "/")))]


class _Gate:
    """ASGI: admins only, page, files and websocket alike."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        """`path` is what metrics and log call it, whatever file is asked for."""
        self._app = app
        self._route = Route(path, app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises NotAllowed, which the API's application answers; a websocket is closed before it opens."""
        scope["route"] = self._route
        if scope["type"] == "websocket" and not tenant_of(HTTPConnection(scope)).admin:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "this needs an admin key"})
            return
        admin_of(HTTPConnection(scope))
        await self._app({**scope}, receive, send)  # a copy, so that the route stays


class _Front:
    """ASGI: the page at its short address."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As if it had been asked for below PATH, so that its links point there."""
        root = scope.get("root_path", "")
        moved = {"path": f"{root}{PATH}/", "root_path": root + PATH}
        await self._app({**scope, **moved, "raw_path": moved["path"].encode()}, receive, send)


def _build(serving: Serving, live: Live, tenant: Tenant) -> None:
    worker = serving.worker
    ui.add_css(SHEET)
    ui.colors(primary=PALETTE[0])
    dark = ui.dark_mode(value=None)
    with ui.element("header").classes("bar"):
        ui.element("span").classes("dot")
        ui.label("ghostkv").classes("brand")
        ui.label(f"{worker.name} · {worker.config.dtype} · manifest {worker.manifest[:12]}").classes("what")
        with ui.element("div").classes("right"):
            looks = ui.toggle(list(_LOOKS), value="auto", on_change=lambda event: dark.set_value(_LOOKS[event.value]))
            looks.props("dense no-caps unelevated size=sm")
    with ui.element("main").classes("board"):
        board = Board(serving, live)
        Chat(serving, tenant, board.choose)
    ui.run_javascript(_WATCH)
