"""Typed access to a model's metadata; every failure names file, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ghostkv.errors import ModelError
from ghostkv.model.shape import ModelShape

_MOST_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one file, or of a mapping in it, whose place `prefix` says."""

    values: Mapping[str, Any]
    file: Path
    prefix: str = ""

    def only(self, key: str, accepted: tuple[object, ...], *, absent: bool = False) -> None:
        """Refuse a value other than those accepted."""
        if key not in self.values:
            if not absent:
                raise self.missing(key)
        elif self.values[key] not in accepted:
            raise ModelError(
                f"{self.file}: {self.prefix}{key} is {self.values[key]!r}; this build computes only "
                + " or ".join(repr(value) for value in accepted if value is not None)
            )

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping, empty where there is none."""
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self.wrong(key, "not a mapping")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "not a positive whole number")
        return value

    def whole(self, key: str) -> int:
        """A whole number, 0 or more."""
        value = self._given(key, None)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(key, "not a whole number of at least 0")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.wrong(key, "not a positive number")
        return float(value)

    def item(self, key: str, index: int, accepted: tuple[Any, ...]) -> Any:
        """One entry of a list."""
        listed = self.values[key]
        if not isinstance(listed, list) or index >= len(listed):
            raise self.wrong(key, f"not a list with an entry for layer {index}")
        if listed[index] not in accepted:
            words = " or ".join(map(repr, accepted))
            raise ModelError(f"{self.file}: {self.prefix}{key} has {listed[index]!r}; this build computes only {words}")
        return listed[index]

    def missing(self, key: str) -> ModelError:
        """The error for an absent key."""
        return ModelError(f"{self.file}: {self.prefix}{key} is missing")

    def wrong(self, key: str, why: str) -> ModelError:
        """The error for a value that cannot be."""
        return ModelError(f"{self.file}: {self.prefix}{key} is {self.values.get(key)!r}, {why}")

    def _given(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        value = default if value is None else value
        if value is None:
            raise self.missing(key)
        return value


def count_layers(keys: Keys, key: str) -> int:
    """The number of layers: damaged metadata must not make what follows run for hours."""
    layers = keys.count(key)
    if layers > _MOST_LAYERS:
        raise ModelError(f"{keys.file}: {layers} layers; at most {_MOST_LAYERS} are expected")
    return layers


def checked(shape: ModelShape, file: Path) -> ModelShape:
    """The shape, if its sizes fit each other."""
    if shape.heads % shape.kv_heads:
        raise ModelError(f"{file}: {shape.heads} query heads do not divide into {shape.kv_heads} key-value heads")
    if shape.head_size % 2:
        raise ModelError(f"{file}: heads of {shape.head_size} channels cannot be rotated in pairs")
    return shape
