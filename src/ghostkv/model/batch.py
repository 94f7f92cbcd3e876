"""A step plan as arrays: what the architecture and the operators read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ghostkv.kv.ring import Ring
from ghostkv.request import Steering
from ghostkv.step import BLOCK_TOKENS, StepPlan

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WindowedRows:
    """The rows of a step that see through a window; their blocks are laid out by `kv.ring.Ring`. All int64 [n]."""

    rows: Longs  # within the batch
    tokens: Longs  # index within the request
    places: Longs  # slot, counted from the table's start
    gone: Longs  # tokens between the sinks and the first one that is seen
    sinks: Longs
    ring_at: Longs  # block of the table where the ring begins
    ring_blocks: Longs

    @classmethod
    def of(cls, rings: Mapping[int, Ring], sequences: Longs, tokens: Longs) -> WindowedRows:
        """`rings` by sequence, at least one; sequences and tokens [rows of the batch]."""
        parts = []
        for sequence, ring in rings.items():
            rows = np.flatnonzero(sequences == sequence)
            own, each = tokens[rows], np.ones(len(rows), dtype=np.int64)
            constants = each * ring.window.sinks, each * ring.sink_blocks, each * ring.ring_blocks
            parts.append((rows, own, ring.slots(own), ring.gone(own), *constants))
        return cls(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    @property
    def positions(self) -> Longs:
        """[n], what each row's query is rotated by: its place among what it sees."""
        return self.tokens - self.gone


@dataclass(frozen=True, slots=True)
class Batch:
    """All tokens of a step, one row each, requests one after the other."""

    rows: int
    ids: Ints  # [rows]
    positions: Ints  # [rows], what queries are rotated by: index within the request, or within what a window shows
    key_positions: Ints  # [rows], what keys are rotated by before they are written: the same, or 0 under a window
    slots: Longs  # [rows], pool slot = block * 16 + offset
    sequences: Ints  # [rows], the row of `tables` that the token reads
    tables: Ints  # [sequences * width], flat block tables
    width: int  # blocks per table
    heads: Longs  # rows whose logits are needed: of each draw, then of each target
    every_row: Longs  # [rows], 0, 1, 2, ...
    plain: Longs  # rows that see all tokens before them
    windowed: WindowedRows | None  # the others
    steerings: tuple[Steering, ...]  # [sequences], what each adds to its rows

    @classmethod
    def of(cls, plan: StepPlan) -> Batch:
        """Lay out `plan`."""
        lengths = np.array([len(row.tokens) for row in plan.rows], dtype=np.int64)
        ends = np.cumsum(lengths)
        starts = np.array([row.start for row in plan.rows], dtype=np.int64)
        ids = np.fromiter((token for row in plan.rows for token in row.tokens), dtype=np.int32, count=int(ends[-1]))
        sequences = np.repeat(np.arange(len(plan.rows)), lengths)
        positions = np.arange(len(ids)) - np.repeat(ends - lengths, lengths) + np.repeat(starts, lengths)
        rings = {i: Ring(row.window) for i, row in enumerate(plan.rows) if row.window is not None}
        used = (starts + lengths + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        for i, ring in rings.items():
            used[i] = ring.blocks
        tables = np.zeros((len(plan.rows), int(used.max())), dtype=np.int32)
        for i, row in enumerate(plan.rows):
            tables[i, : used[i]] = row.table[: used[i]]
        every_row, windowed = np.arange(len(ids)), None
        plain, places, key_positions = every_row, positions, positions
        if rings:
            windowed = WindowedRows.of(rings, sequences, positions)
            plain = np.setdiff1d(every_row, windowed.rows)
            places, positions, key_positions = positions.copy(), positions.copy(), positions.copy()
            places[windowed.rows], positions[windowed.rows] = windowed.places, windowed.positions
            key_positions[windowed.rows] = 0
        blocks = tables[sequences, places // BLOCK_TOKENS].astype(np.int64)
        return cls(
            rows=len(ids),
            ids=ids,
            positions=positions.astype(np.int32),
            key_positions=key_positions.astype(np.int32),
            slots=blocks * BLOCK_TOKENS + places % BLOCK_TOKENS,
            sequences=sequences.astype(np.int32),
            tables=tables.reshape(-1),
            width=tables.shape[1],
            heads=np.array([*_drawing(plan, ends), *_scoring(plan, ends)], dtype=np.int64),
            every_row=every_row,
            plain=plain,
            windowed=windowed,
            steerings=tuple(row.steering for row in plan.rows),
        )


def _drawing(plan: StepPlan, ends: Longs) -> Iterator[int]:
    for end, row in zip(ends.tolist(), plan.rows):
        yield from range(end - len(row.draws), end)


def _scoring(plan: StepPlan, ends: Longs) -> Iterator[int]:
    for end, row in zip(ends.tolist(), plan.rows):
        if row.targets is not None:
            first = end - len(row.tokens) + row.targets.first
            yield from range(first, first + len(row.targets.ids))
