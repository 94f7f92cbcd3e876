"""A step plan as arrays: what the architecture and the operators read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ghostkv.step import BLOCK_TOKENS, StepPlan

Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """All tokens of a step, one row each, requests one after the other."""

    rows: int
    ids: Ints  # [rows]
    positions: Ints  # [rows], within the request
    slots: Longs  # [rows], pool slot = block * 16 + offset
    sequences: Ints  # [rows], the row of `tables` that the token reads
    tables: Ints  # [sequences * width], flat block tables
    width: int  # blocks per table
    heads: Longs  # [requests with a draw], rows whose logits are needed
    every_row: Longs  # [rows], 0, 1, 2, ...

    @classmethod
    def of(cls, plan: StepPlan) -> Batch:
        """Lay out `plan`."""
        lengths = np.array([len(row.tokens) for row in plan.rows], dtype=np.int64)
        ends = np.cumsum(lengths)
        starts = np.array([row.start for row in plan.rows], dtype=np.int64)
        ids = np.fromiter((token for row in plan.rows for token in row.tokens), dtype=np.int32, count=int(ends[-1]))
        sequences = np.repeat(np.arange(len(plan.rows)), lengths)
        positions = np.arange(len(ids)) - np.repeat(ends - lengths, lengths) + np.repeat(starts, lengths)
        used = (starts + lengths + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        tables = np.zeros((len(plan.rows), int(used.max())), dtype=np.int32)
        for i, row in enumerate(plan.rows):
            tables[i, : used[i]] = row.table[: used[i]]
        blocks = tables[sequences, positions // BLOCK_TOKENS].astype(np.int64)
        return cls(
            rows=len(ids),
            ids=ids,
            positions=positions.astype(np.int32),
            slots=blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS,
            sequences=sequences.astype(np.int32),
            tables=tables.reshape(-1),
            width=tables.shape[1],
            heads=np.array([end - 1 for end, row in zip(ends, plan.rows) if row.draw is not None], dtype=np.int64),
            every_row=np.arange(len(ids)),
        )
