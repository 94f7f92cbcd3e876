"""GET /health, /ready and /live: three questions that probes ask."""

from __future__ import annotations

from fastapi import APIRouter

from ghostkv.errors import EngineFault
from ghostkv.server.envelope import Json
from ghostkv.server.serving import Serving


def health_routes(serving: Serving) -> APIRouter:
    """The routes. Before the server is ready its port takes no connections, so none of them is answered then."""
    router = APIRouter()

    @router.get("/health")
    @router.get("/ready")
    async def health() -> Json:
        """200 while a request would be served, be it that it had to wait; 503 with the reason once it would not."""
        if not serving.worker.healthy():
            raise EngineFault("the engine has stopped")
        serving.gate.check_open()
        return {"status": "ok"}

    @router.get("/live")
    async def live() -> Json:
        """200 as long as this process answers anything."""
        return {"status": "ok"}

    return router
