"""GET /metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from ghostkv.server.access import tenant_of
from ghostkv.telemetry.metrics import Metrics


def metrics_routes(metrics: Metrics) -> APIRouter:
    """The route. What stands under a tenant's alias is in it for an admin key only."""
    router = APIRouter()

    @router.get("/metrics")
    async def scrape(request: Request) -> Response:
        """Everything that is counted, in Prometheus's text format or, if asked for, as OpenMetrics."""
        accept = request.headers.get("accept", "")
        body, kind = metrics.text(accept, tenants=tenant_of(request).admin)
        return Response(body, headers={"content-type": kind})

    return router
