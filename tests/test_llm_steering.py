"""Control vectors from the library's front door to every segment of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import write_hf_checkpoint
from ghostkv import LLM, InvalidRequest, ModelError
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.steering import SteeringBank
from ghostkv.request import NO_STEERING, SegmentRequest, Steering

LONG: dict[str, Any] = {"max_tokens": 250, "temperature": 0, "ignore_eos": True, "residency": "segment"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_checkpoint(tmp_path_factory.mktemp("llm") / "tiny", context=1024)


@pytest.fixture(scope="module")
def bank(path: Path) -> Path:
    vectors = torch.randn(2, 128, generator=torch.Generator().manual_seed(1))
    SteeringBank(open_checkpoint(path).digest, ("calm", "formal"), (0, 1), vectors).save(path / "bank.steering")
    return path / "bank.steering"


@pytest.fixture(scope="module")
def llm(path: Path, bank: Path) -> Iterator[LLM]:
    with LLM(str(path), kv_budget="2MiB", dtype="float32", steering=str(bank)) as llm:
        yield llm


def test_every_segment_is_steered(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SegmentRequest] = []
    backend: Any = llm.worker.backend
    generate = backend.generate

    def recorded(request: SegmentRequest) -> Any:
        asked.append(request)
        return generate(request)

    monkeypatch.setattr(backend, "generate", recorded)
    plain = llm.generate("hello", **LONG)
    off = llm.generate("hello", **LONG, steering={"calm": 0.0})
    assert off.text == plain.text
    assert len(plain.segments) > 1 and {request.steering for request in asked} == {NO_STEERING}

    asked.clear()
    steered = llm.generate("hello", **LONG, steering={"calm": 1, "formal": -2})
    assert steered.text != plain.text
    assert len(asked) > 1 and {request.steering for request in asked} == {Steering((("calm", 32), ("formal", -64)))}


def test_unknown_vectors_are_refused_with_those_there_are(llm: LLM, path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'sad': there are calm, formal") as refused:
        llm.generate("hello", steering={"sad": 1.0})
    assert refused.value.param == "steering"
    with LLM(str(path), kv_budget="2MiB", dtype="float32") as plain:
        assert plain.worker.manifest != llm.worker.manifest  # equal manifests compute equal bits
        with pytest.raises(InvalidRequest, match="this model has none"):
            plain.generate("hello", steering={"calm": 1.0})


def test_a_foreign_bank_is_refused_at_start_up(tmp_path: Path, bank: Path) -> None:
    other = write_hf_checkpoint(tmp_path / "other", seed=9)
    with pytest.raises(ModelError, match="learn a bank on this model"):
        LLM(str(other), kv_budget="2MiB", dtype="float32", steering=str(bank))
