"""GET /health, /ready and /live: three questions that probes ask."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter

from ghostkv.backends.base import UpstreamState
from ghostkv.errors import EngineFault
from ghostkv.server.envelope import Json
from ghostkv.server.serving import Serving


def _shown(state: UpstreamState) -> Json:
    """Without its address: probes need no key."""
    since = datetime.fromtimestamp(state.since, UTC).isoformat(timespec="seconds")
    return {"healthy": state.healthy, "since": since, "running": state.running, "failovers": state.failovers}


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
        stats = None if serving.worker.stats is None else serving.worker.stats()
        upstreams = () if stats is None else stats.upstreams
        if upstreams and not any(each.healthy for each in upstreams):
            raise EngineFault("no upstream can be reached")
        return {"status": "ok", **({"upstreams": list(map(_shown, upstreams))} if upstreams else {})}

    @router.get("/live")
    async def live() -> Json:
        """200 as long as this process answers anything."""
        return {"status": "ok"}

    return router
