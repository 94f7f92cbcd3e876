"""Fixtures: servers over scripts, and one over a small random model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fakes import Script
from ghostkv.config import EngineConfig
from ghostkv.launch import engine_config, open_worker
from ghostkv.session.worker import Worker
from services import Scripted, ScriptedBackend, Service, scripted_worker, serving


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """Start servers over scripts; they end with the test."""
    with ExitStack() as stack:

        def start(
            script: Script, *, config: EngineConfig | None = None, drain_s: float = 0.2, **options: Any
        ) -> Service:
            backend = ScriptedBackend(script, **options)
            return stack.enter_context(serving(scripted_worker(backend, config), drain_s=drain_s))

        yield start


@pytest.fixture(scope="session")
def small_worker(small_hf: Path) -> Iterator[Worker]:
    worker = open_worker(str(small_hf), engine_config(kv_budget="4MiB", dtype="float32", max_session_tokens=2000))
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def small(small_worker: Worker) -> Iterator[Service]:
    """A server over the small random model, context 512."""
    with serving(small_worker) as service:
        yield service
