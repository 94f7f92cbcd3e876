"""Control vectors: directions of the residual stream that a request may add to its own rows (TGP R6).

A bank is learned once per model and shared by all sessions; a request names its vectors and carries int8 coefficients
only. Adding is exact per row: a row's bits depend on its own steering and on nothing else in the batch, and where no
row steers nothing is done. Not here: who steers and how strongly (request), nor that steered KV is never mixed with
other KV (`SegmentRequest.domain`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ghostkv.errors import InvariantViolation, ModelError
from ghostkv.model import machine
from ghostkv.model.batch import Batch
from ghostkv.request import STEERING_UNIT, Steering
from ghostkv.step import blocks_of

if TYPE_CHECKING:
    from ghostkv.model.decoder import Decoder
    from ghostkv.model.runner import ModelRunner

SHARE = 0.1  # of the mean residual norm at a vector's layer: the length of a vector, so what coefficient 1.0 adds
_KEPT = 256  # steerings whose sum of vectors is kept


@dataclass(frozen=True, slots=True)
class SteeringBank:
    """Named vectors of one model, in the basis of its checkpoint."""

    model: str  # content digest of the checkpoint that they were learned on
    names: tuple[str, ...]
    layers: tuple[int, ...]  # of each vector: it is added after this block, counted from 0
    vectors: torch.Tensor  # float32 [names, hidden], each SHARE of the mean residual norm long

    @property
    def digest(self) -> str:
        """32 hex digits over everything in the bank."""
        return machine.digest(self.model, self.names, self.layers, self.vectors.numpy().tobytes().hex())

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        metadata = {"model": self.model, "names": json.dumps(self.names), "layers": json.dumps(self.layers)}
        save_file({"vectors": self.vectors.contiguous()}, path, metadata)

    @classmethod
    def load(cls, path: Path, model: str, *, hidden: int, layers: int) -> SteeringBank:
        """Read a bank for the checkpoint whose digest is `model`. Raises ModelError for a damaged or a foreign one."""
        try:
            with safe_open(path, framework="pt") as opened:
                metadata = opened.metadata() or {}
                vectors = opened.get_tensor("vectors").float()
            bank = cls(
                metadata["model"],
                tuple(map(str, json.loads(metadata["names"]))),
                tuple(map(int, json.loads(metadata["layers"]))),
                vectors,
            )
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise ModelError(f"{path}: not a readable steering bank: {error}") from error
        if bank.model != model:
            raise ModelError(
                f"{path}: these control vectors were learned on model {bank.model[:12]}, this one is {model[:12]}: "
                f"learn a bank on this model"
            )
        names = len(set(bank.names))
        if vectors.shape != (names, hidden) or not names == len(bank.names) == len(bank.layers):
            raise ModelError(
                f"{path}: {names} different names, {len(bank.layers)} layers and vectors {list(vectors.shape)} "
                f"do not describe vectors of {hidden} numbers each"
            )
        if not vectors.isfinite().all() or any(not 0 <= layer < layers for layer in bank.layers):
            raise ModelError(f"{path}: a vector is not finite, or its layer is not one of the model's {layers}")
        return bank


@dataclass(frozen=True, slots=True)
class Shift:
    """What a step adds to the residual stream after one block."""

    rows: torch.Tensor  # int64 [n], distinct
    source: torch.Tensor  # int64 [n], row of `sums`
    sums: torch.Tensor  # float32 [steerings, hidden]

    def add_to(self, residual: torch.Tensor) -> None:
        """residual[rows] += sums[source]: one float32 addition per element, so it has one result everywhere."""
        residual[self.rows] += self.sums[self.source]


NO_SHIFTS: Mapping[int, Shift] = MappingProxyType({})


class Steerer:
    """A bank bound to a loaded model."""

    def __init__(self, bank: SteeringBank, model: Decoder) -> None:
        self.bank = bank
        self._index = {name: i for i, name in enumerate(bank.names)}
        self._layers = sorted(set(bank.layers))
        self._vectors = model.to_residual(bank.vectors.to(model.embedding.device))
        self._sum = lru_cache(_KEPT)(self._sum_of)

    def shifts(self, batch: Batch) -> Mapping[int, Shift]:
        """What to add after which block; nothing for a batch without steering."""
        distinct = [steering for steering in dict.fromkeys(batch.steerings) if steering]
        if not distinct:
            return NO_SHIFTS
        found = {}
        for layer in self._layers:
            sums = {s: total for s in distinct if (total := self._sum(s, layer)) is not None}
            if not sums:
                continue
            place = {steering: i for i, steering in enumerate(sums)}
            source = np.array([place.get(s, -1) for s in batch.steerings], dtype=np.int64)[batch.sequences]
            rows = np.flatnonzero(source >= 0)
            device = self._vectors.device
            found[layer] = Shift(
                torch.from_numpy(rows).to(device),
                torch.from_numpy(source[rows]).to(device),
                torch.stack(list(sums.values())),
            )
        return found

    def _sum_of(self, steering: Steering, layer: int) -> torch.Tensor | None:
        """Float32 [hidden]: sum of coefficient * vector over the steering's vectors at `layer`, by ascending name."""
        total: torch.Tensor | None = None
        for name, steps in steering.parts:
            if name not in self._index:
                raise InvariantViolation(f"control vector {name!r} is not in the bank; it should have been refused")
            if self.bank.layers[self._index[name]] == layer:
                part = self._vectors[self._index[name]] * (steps * STEERING_UNIT)
                total = part if total is None else total + part
        return total


Example = tuple[Sequence[int], int]
"""Token ids, and where in them the text that shows the trait (or does not) begins; before it stands a prompt."""


def learn(runner: ModelRunner, positive: Sequence[Example], negative: Sequence[Example], layer: int) -> torch.Tensor:
    """The control vector from `negative` to `positive` texts after block `layer`, float32 [hidden].

    Difference of the mean residual over all text tokens (prompt tokens only condition it), scaled to SHARE of their
    mean norm. Begin each text after a prompt: the first position of a sequence is an attention sink, many times longer
    than the rest. Writes to the first blocks of the runner's pool, so before anything is stored. Raises ModelError
    where the two means are equal.
    """
    sides = []
    for examples in (positive, negative):
        rows = [runner.residuals(ids, layer, _table(ids))[start:] for ids, start in examples]
        sides.append(torch.cat(rows).double())
    difference = sides[0].mean(dim=0) - sides[1].mean(dim=0)
    length = float(difference.norm())
    if not length > 0:
        raise ModelError("both sides have the same mean residual: there is no direction between them")
    mean_norm = float(torch.cat(sides).norm(dim=1).mean())
    return (difference * (SHARE * mean_norm / length)).float()


def _table(ids: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.arange(blocks_of(len(ids)), dtype=np.int32)
