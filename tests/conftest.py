"""Fixtures that several components share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    # Two processes that compile at once must not share a cache: Numba may give both their kernels one file's name.
    os.environ["NUMBA_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "kernels" / _worker)

import pytest
from hypothesis import settings

from checkpoints import write_gguf_checkpoint, write_hf_checkpoint
from databases import Cluster, cluster
from fakes import Script
from ghostkv.config import EngineConfig, ServerConfig
from ghostkv.launch import engine_config, open_worker
from ghostkv.model.pull import pull
from ghostkv.session.worker import Worker
from ghostkv.telemetry.logs import JsonLines, TextLines
from services import Scripted, ScriptedBackend, Service, scripted_worker, serving

settings.register_profile("ghostkv", derandomize=True, deadline=None)
settings.load_profile("ghostkv")


@pytest.fixture(autouse=True)
def no_log_outlives_a_test() -> Iterator[None]:
    """`serve` sets up the log of its process, on a stream that is closed when a test of it ends."""
    yield
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, JsonLines | TextLines):
            root.removeHandler(handler)
            logging.getLogger("ghostkv").setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real model, in the user's own cache: pulled, dequantised and self-checked once per machine."""
    return pull("smollm2", print)


@pytest.fixture(scope="session")
def small_hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default random checkpoint as a Hugging Face directory. Read-only."""
    return write_hf_checkpoint(tmp_path_factory.mktemp("checkpoint") / "small")


@pytest.fixture(scope="session")
def small_gguf(small_hf: Path) -> Path:
    """The same checkpoint as GGUF in float32. Read-only."""
    return write_gguf_checkpoint(small_hf.parent / "small.gguf", small_hf)


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory for this test alone."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("GHOSTKV_CACHE", str(cache))
    return cache


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    """Start servers over scripts; they end with the test."""
    with ExitStack() as stack:

        def start(
            script: Script,
            *,
            config: EngineConfig | None = None,
            limits: ServerConfig | None = None,
            drain_s: float = 0.2,
            **options: Any,
        ) -> Service:
            backend = ScriptedBackend(script, **options)
            return stack.enter_context(serving(scripted_worker(backend, config), drain_s=drain_s, limits=limits))

        yield start


@pytest.fixture(scope="session")
def small_worker(small_hf: Path) -> Iterator[Worker]:
    worker = open_worker(str(small_hf), engine_config(kv_budget="4MiB", dtype="float32", max_session_tokens=2000))
    yield worker
    worker.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL server for the tests that ask for one."""
    with cluster() as made:
        yield made


@pytest.fixture(scope="session")
def small(small_worker: Worker) -> Iterator[Service]:
    """A server over the small random model, context 512."""
    with serving(small_worker) as service:
        yield service
