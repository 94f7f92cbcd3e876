"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import time

from fastapi import APIRouter

from ghostkv.errors import ModelNotFound
from ghostkv.server.envelope import Json
from ghostkv.server.serving import Serving
from ghostkv.session.worker import Worker

_SHOWN = 100  # characters of a wrong name that the error repeats


def model_routes(serving: Serving) -> APIRouter:
    """The routes."""
    router, worker = APIRouter(), serving.worker
    model = {
        "id": worker.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "ghostkv",
        "max_model_len": worker.backend.capabilities().max_context,
    }

    @router.get("/v1/models")
    async def models() -> Json:
        """The one model."""
        return {"object": "list", "data": [model]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Json:
        """The model of that id."""
        check_model(worker, name)
        return model

    return router


def check_model(worker: Worker, name: str) -> None:
    """Raises ModelNotFound, naming the model that is served."""
    if name != worker.name:
        raise ModelNotFound(f"the model {name[:_SHOWN]!r} is not served here; {worker.name!r} is", param="model")
