"""The application: middleware and routes. It opens nothing and starts nothing."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response

from ghostkv.server import errors
from ghostkv.server.answers import ClientGone
from ghostkv.server.chat import chat_routes
from ghostkv.server.completions import completion_routes
from ghostkv.server.intake import RequestIds
from ghostkv.server.models import model_routes
from ghostkv.server.serving import Serving

_CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody is there to read it


def build_app(serving: Serving) -> FastAPI:
    """The API."""
    # Bodies are parsed by the routes, so FastAPI could only describe them wrongly.
    app = FastAPI(title="ghostkv", openapi_url=None, redirect_slashes=False)
    errors.install(app)
    app.add_middleware(RequestIds)  # last, so outermost: every reply has an id
    app.add_exception_handler(ClientGone, _client_gone)
    for router in (chat_routes(serving), completion_routes(serving), model_routes(serving)):
        app.include_router(router)
    return app


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)
