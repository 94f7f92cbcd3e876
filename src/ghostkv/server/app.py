"""The application: middleware and routes. It opens nothing and starts nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fastapi import FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware

from ghostkv.server import errors
from ghostkv.server.access import KeyCheck, act_for
from ghostkv.server.answers import Answers, ClientGone
from ghostkv.server.chat import chat_routes
from ghostkv.server.completions import completion_routes
from ghostkv.server.description import description_routes
from ghostkv.server.forks import fork_routes
from ghostkv.server.health import health_routes
from ghostkv.server.intake import Heads, RequestIds
from ghostkv.server.metrics import metrics_routes
from ghostkv.server.models import model_routes
from ghostkv.server.moving import moving_routes, peer_routes
from ghostkv.server.once import Once, OnceLimits
from ghostkv.server.recovery import Recovery
from ghostkv.server.replay import recorded_grammar
from ghostkv.server.responses import response_routes
from ghostkv.server.running import Feed
from ghostkv.server.serving import Serving
from ghostkv.server.sessions import session_routes
from ghostkv.server.tokenization import tokenization_routes
from ghostkv.session.chain import Closed
from ghostkv.session.resumption import Resumed
from ghostkv.telemetry.calls import Calls

_CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody is there to read it


def build_app(serving: Serving) -> FastAPI:
    """The API."""
    recovery = _recovery(serving)
    # Bodies are parsed by the routes, so FastAPI could only describe them wrongly.
    app = FastAPI(
        title="ghostkv",
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lambda _: recovery.over(serving.store, serving.config.resume_s),
    )
    errors.install(app)
    app.add_middleware(Heads)
    app.add_middleware(Once, limits=OnceLimits(grace_s=serving.config.sessions.grace_s))
    app.add_middleware(KeyCheck, access=serving.access)
    if serving.access.cors_origins:  # outside the check: a preflight brings no key, and a refusal is to be read
        app.add_middleware(
            CORSMiddleware,
            allow_origins=serving.access.cors_origins,
            allow_methods=("GET", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=("x-request-id", "retry-after"),
        )
    watchers = (serving.metrics.watcher, serving.log)
    app.add_middleware(Calls, watchers=watchers, clock=serving.metrics.clock)  # outside all that may refuse
    app.add_middleware(RequestIds)  # last, so outermost: every reply has an id
    app.add_exception_handler(ClientGone, _client_gone)
    app.include_router(metrics_routes(serving.metrics))
    app.include_router(health_routes(serving))
    for routes in (
        chat_routes,
        completion_routes,
        response_routes,
        tokenization_routes,
        model_routes,
        description_routes,
    ):
        app.include_router(routes(serving))
    app.include_router(session_routes(serving, recovery))
    app.include_router(fork_routes(serving))
    app.include_router(moving_routes(serving))
    if serving.peers.secret:
        app.include_router(peer_routes(serving, recovery))
    return app


def _recovery(serving: Serving) -> Recovery:
    def feeding(found: Resumed) -> Callable[[Closed], Feed]:
        act_for(serving.access, found.turn)
        return lambda closed: Answers(serving, [found.turn], closed, found.start, apart=True)

    regrown = partial(recorded_grammar, serving.worker)
    return Recovery(serving.desk, serving.worker, feeding, regrown, lambda: serving.gate.shut)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)
