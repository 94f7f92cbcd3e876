"""Digits kept on disk: the same bits as made in memory, made once, and again when what they rest on changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checkpoints import write_hf_checkpoint
from ghostkv.config import EngineConfig
from ghostkv.model import int8, int8_weights, machine, weight_cache
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.int8_weights import int8_layout, load_int8
from ghostkv.model.load import build_model
from model.lab import Lab, teacher_forced

CONFIG = EngineConfig(dtype="int8")


@pytest.fixture(scope="module")
def lab(small_hf: Path) -> Lab:
    """Its digits were made in memory."""
    return Lab(small_hf, torch.int8)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that weights were turned into digits."""
    calls: list[int] = []
    original = int8.rotated

    def counted(*arguments: object) -> object:
        calls.append(1)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(int8, "rotated", counted)
    return calls


def kept(cache: Path) -> list[Path]:
    return sorted((cache / "weights").glob("*-int8-*.safetensors"))


def test_a_model_from_the_cache_computes_the_same_bits(
    lab: Lab, private_cache: Path, small_hf: Path, made: list[int]
) -> None:
    ids, table = list(range(3, 40)), torch.arange(4, dtype=torch.int32).numpy()
    expected = teacher_forced(lab.runner(4), ids, table)
    checkpoint = open_checkpoint(small_hf)
    for _ in range(2):
        lab.model = build_model(checkpoint, CONFIG)
        assert torch.equal(teacher_forced(lab.runner(4), ids, table), expected)
    assert len(made) == 1
    assert len(kept(private_cache)) == 1


def test_nothing_of_a_loaded_model_lies_in_the_file(private_cache: Path, small_hf: Path) -> None:
    # A page fault inside a step would read from the disk.
    checkpoint = open_checkpoint(small_hf)
    for _ in range(2):
        model = build_model(checkpoint, CONFIG)
        assert str(private_cache) not in Path("/proc/self/maps").read_text(encoding="utf-8")
        del model


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_is_what_the_layout_says(tmp_path: Path, private_cache: Path, tied: bool) -> None:
    checkpoint = open_checkpoint(write_hf_checkpoint(tmp_path / "model", tied=tied))
    weights = int8_weights.int8_weights(checkpoint.shape, checkpoint.weights(torch.bfloat16))
    found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in weights.items()}
    assert found == dict(int8_layout(checkpoint.shape, torch.bfloat16))
    loaded = load_int8(checkpoint, torch.bfloat16)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def other_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = tmp_path / "int8.py"
    changed.write_text(Path(int8.__file__).read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    monkeypatch.setattr(int8_weights, "_SOURCES", (changed, *int8_weights._SOURCES[1:]))


def other_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "cpu_features", lambda: "avx")


@pytest.mark.parametrize("change", [other_code, other_processor])
def test_digits_of_other_code_or_another_processor_are_not_used(
    private_cache: Path,
    tmp_path: Path,
    small_hf: Path,
    made: list[int],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[pytest.MonkeyPatch, Path], None],
) -> None:
    checkpoint = open_checkpoint(small_hf)
    load_int8(checkpoint, torch.bfloat16)
    change(monkeypatch, tmp_path)
    load_int8(checkpoint, torch.bfloat16)
    assert len(made) == 2
    assert len(kept(private_cache)) == 2


def test_a_damaged_file_is_made_again(private_cache: Path, small_hf: Path, made: list[int]) -> None:
    checkpoint = open_checkpoint(small_hf)
    expected = {name: tensor.clone() for name, tensor in load_int8(checkpoint, torch.bfloat16).items()}
    (file,) = kept(private_cache)
    raw = bytearray(file.read_bytes())
    raw[-7] ^= 1
    file.write_bytes(raw)
    found = load_int8(checkpoint, torch.bfloat16)
    assert len(made) == 2
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_the_files_used_last_are_kept(private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "_KEPT", 3)
    directory = private_cache / "weights"

    def use(name: str) -> None:
        weight_cache.cached_weights(name, "x", {"x": (torch.float32, (2,))}, lambda: {"x": torch.zeros(2)})
        for file in directory.glob("*.safetensors"):  # all a minute older, so that no clock decides
            at = file.stat().st_mtime - 60
            os.utime(file, (at, at))

    for name in ("a", "b", "c"):
        use(name)
    abandoned, draft = directory / "tmpold", directory / "tmpnew"
    for folder in (abandoned, draft):
        folder.mkdir()
        (folder / "part").write_bytes(b"x")
    os.utime(abandoned, (1000, 1000))
    use("a")  # from the disk
    use("d")
    assert sorted(path.name[0] for path in directory.glob("*.safetensors")) == ["a", "c", "d"]
    assert draft.exists()
    assert not abandoned.exists()
