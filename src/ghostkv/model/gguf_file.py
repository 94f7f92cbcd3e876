"""The GGUF container: metadata and where each tensor lies. Not the model in it (gguf_loader).

Read here rather than with gguf.GGUFReader, which builds several array views for every token string (seconds for a large
vocabulary) and cannot say which tensor a truncated file lacks. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from ghostkv.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
READABLE = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor's place in the file. `shape` is row-major: [out, in] for a matrix."""

    name: str
    kind: int  # ggml type number
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file

    @property
    def type_name(self) -> str:
        """The ggml type's name, or its number if the installed gguf package does not know it."""
        try:
            return str(gguf.GGMLQuantizationType(self.kind).name)
        except ValueError:
            return f"number {self.kind}"


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed header. `metadata` holds plain Python values; arrays are lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]

    def read(self, tensor: GgufTensor) -> npt.NDArray[np.float32]:
        """The tensor dequantised to float32 with its own shape. Raises ModelError for a type outside READABLE."""
        rows, count, kind = self._extent(tensor)
        raw = np.memmap(self.path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=(rows, count // rows))
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            width = np.dtype("<f4" if kind == gguf.GGMLQuantizationType.F32 else "<f2")
            return raw.view(width).astype(np.float32).reshape(tensor.shape)
        values: npt.NDArray[np.float32] = gguf.dequantize(np.asarray(raw), kind)
        return values.reshape(tensor.shape)

    def check(self) -> None:
        """Refuse a tensor of another type or one that reaches beyond the end of the file."""
        size = self.path.stat().st_size
        for tensor in self.tensors.values():
            end = tensor.offset + self._extent(tensor)[1]
            if end > size:
                raise ModelError(
                    f"{self.path}: truncated: tensor {tensor.name} ends at byte {end}, the file has {size} bytes"
                )

    def _extent(self, tensor: GgufTensor) -> tuple[int, int, Any]:
        """(rows, bytes, type) of a tensor of a readable type."""
        if tensor.type_name not in READABLE:
            raise ModelError(
                f"{self.path}: tensor {tensor.name} has type {tensor.type_name}; readable are {', '.join(READABLE)}"
            )
        kind = gguf.GGMLQuantizationType(tensor.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        columns = tensor.shape[-1] if tensor.shape else 1
        if columns % block or 0 in tensor.shape:
            raise ModelError(f"{self.path}: tensor {tensor.name} of shape {tensor.shape} does not fit type {kind.name}")
        rows = math.prod(tensor.shape[:-1])
        return rows, rows * (columns // block) * size, kind


def read_gguf(path: Path) -> GgufFile:
    """Parse and check the header of `path`. Raises ModelError if it is not a whole little-endian GGUF 2 or 3 file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            parsed = _parse(path, _Cursor(data))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # an empty file, bad UTF-8, or what _Cursor found
        raise ModelError(f"{path}: not a readable GGUF file: {error}") from error
    parsed.check()
    return parsed


class _Cursor:
    """Reads values off the header, in order."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        end = self.at + count
        if end > len(self.data):
            raise ValueError(f"truncated: the header goes on at byte {end}, the file has {len(self.data)} bytes")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def scalar(self, code: str) -> Any:
        """One number of a struct type."""
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        """A length and its UTF-8 bytes."""
        return self.take(int.from_bytes(self.take(8), "little")).decode("utf-8")

    def strings(self, count: int) -> list[str]:
        """`count` strings: a vocabulary or its merges, hence without a call for each."""
        data, at, found = self.data, self.at, []
        for _ in range(count):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > len(data):
                raise ValueError(f"truncated: the header goes on at byte {at}, the file has {len(data)} bytes")
            found.append(data[start:at].decode("utf-8"))
        self.at = at
        return found

    def value(self, kind: int) -> Any:
        """One metadata value."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner == _ARRAY:
                raise ValueError(f"an array of arrays at byte {self.at}")
            if inner in _SCALARS:
                code = _SCALARS[inner]
                raw = self.take(count * struct.calcsize("<" + code))
                return list(struct.unpack(f"<{count}{code}", raw))
            return self.strings(count) if inner == _STRING else [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown metadata type {kind} at byte {self.at}")
        return self.scalar(_SCALARS[kind])


def _parse(path: Path, cursor: _Cursor) -> GgufFile:
    if cursor.take(4) != b"GGUF":
        raise ValueError("it does not start with GGUF")
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ValueError(f"version {version}; 2 and 3 are readable")
    tensor_count, key_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    if metadata.get("split.count", 1) not in (0, 1):
        raise ValueError(f"it is one of {metadata['split.count']} parts; merge them into one file first")
    entries = []
    for _ in range(tensor_count):
        name, dimensions = cursor.string(), cursor.scalar("I")
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]  # stored with the contiguous one first
        entries.append((name, shape, cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    base = -(-cursor.at // alignment) * alignment
    tensors = {name: GgufTensor(name, kind, shape, base + offset) for name, shape, kind, offset in entries}
    if len(tensors) != len(entries):
        raise ValueError("two tensors have the same name")
    return GgufFile(path, metadata, tensors)
