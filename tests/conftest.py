"""Fixtures that several components share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from checkpoints import write_gguf_checkpoint, write_hf_checkpoint
from ghostkv.model.pull import pull

settings.register_profile("ghostkv", derandomize=True, deadline=None)
settings.load_profile("ghostkv")


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
