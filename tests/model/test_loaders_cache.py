"""Dequantised weights on disk: made once, mapped after that, and made again when damaged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ghostkv.errors import ModelError
from ghostkv.model import digest as digests
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.digest import content_digest
from ghostkv.model.gguf_file import GgufFile
from ghostkv.model.weight_cache import cached_weights


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tensors that were dequantised."""
    names: list[str] = []
    original = GgufFile.read

    def counted(self: GgufFile, tensor: object) -> object:
        names.append(tensor.name)  # type: ignore[attr-defined]
        return original(self, tensor)  # type: ignore[arg-type]

    monkeypatch.setattr(GgufFile, "read", counted)
    return names


def test_second_start_dequantises_nothing(private_cache: Path, small_gguf: Path, reads: list[str]) -> None:
    first = open_checkpoint(small_gguf).weights(torch.bfloat16)
    made = len(reads)
    assert made == len(first)
    second = open_checkpoint(small_gguf).weights(torch.bfloat16)
    assert len(reads) == made
    assert all(torch.equal(first[name], second[name]) for name in first)
    open_checkpoint(small_gguf).weights(torch.float32)
    assert len(reads) == 2 * made
    assert len(list((private_cache / "weights").iterdir())) == 2  # one file per dtype and no drafts


def flip(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-1000] ^= 4
    file.write_bytes(raw)


def rename_tensor(file: Path) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    tensors["other"] = tensors.pop("model.norm.weight")
    save_file(tensors, file)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-10]),
    "empty": lambda file: file.write_bytes(b""),
    "zeroed": lambda file: file.write_bytes(file.read_bytes()[:-4096] + bytes(4096)),
    "one bit": flip,
    "other tensors": rename_tensor,
    "not safetensors": lambda file: file.write_text("hello, this is not a safetensors file"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_file_is_built_again(
    private_cache: Path, small_gguf: Path, reads: list[str], damage: Callable[[Path], object]
) -> None:
    checkpoint = open_checkpoint(small_gguf)
    expected = {name: tensor.clone() for name, tensor in checkpoint.weights(torch.float32).items()}
    (file,) = (private_cache / "weights").iterdir()
    made = len(reads)
    damage(file)
    weights = checkpoint.weights(torch.float32)
    assert len(reads) == 2 * made
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    checkpoint.weights(torch.float32)
    assert len(reads) == 2 * made


def test_failed_conversion_leaves_nothing(private_cache: Path) -> None:
    def fail() -> dict[str, torch.Tensor]:
        raise ModelError("model.gguf: tensor x holds NaN")

    with pytest.raises(ModelError, match="holds NaN"):
        cached_weights("0" * 32, "float32", {"x": (torch.float32, (1,))}, fail)
    assert not list(private_cache.rglob("*.safetensors"))


def test_cache_that_cannot_be_written(private_cache: Path, small_gguf: Path) -> None:
    private_cache.write_text("a file where the directory should be")
    with pytest.raises(ModelError, match="GHOSTKV_CACHE"):
        open_checkpoint(small_gguf).weights(torch.float32)


def test_digest_of_a_large_file_is_remembered(
    private_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_REMEMBERED", 10)
    file = tmp_path / "weights"
    file.write_bytes(b"a" * 100)
    fresh = content_digest([file])
    assert not private_cache.exists()  # changed just now: the same time stamp may yet cover other bytes
    os.utime(file, (1000, 1000))
    assert content_digest([file]) == fresh
    file.write_bytes(b"b" * 100)
    os.utime(file, (1000, 1000))
    assert content_digest([file]) == fresh  # found by path, size and time: not read again
    os.utime(file, (2000, 2000))
    changed = content_digest([file])
    assert changed != fresh
    for note in (private_cache / "digests").iterdir():
        note.write_text("short")
    assert content_digest([file]) == changed
