"""Who comes first: decodes before prefill, and the waiting line in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import TypeVar

from ghostkv.engine.sequence import Sequence

T = TypeVar("T")


def by_phase(running: Iterable[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
    """(decoding, prefilling), each in order of admission."""
    decoding: list[Sequence] = []
    prefilling: list[Sequence] = []
    for sequence in running:
        (decoding if sequence.decoding else prefilling).append(sequence)
    return decoding, prefilling


def head(resuming: Mapping[str, T], arriving: Mapping[str, T]) -> T | None:
    """The request that may be admitted next; sessions that have begun to answer come before those that have not.

    Only the head of a line may, so a large request is not overtaken for ever.
    """
    return next(chain(resuming.values(), arriving.values()), None)
