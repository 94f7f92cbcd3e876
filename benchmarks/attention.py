"""Time of attention over KV as int8 digits against bfloat16 KV. Appends to results/attention.jsonl.

The compiled routine alone: one query row for each sequence, one layer's pool for each of the model's layers, so that KV
comes from memory. Both codecs in turn, layer by layer, within one process; blocks scattered as after some use.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
import torch
from record import append

from ghostkv.model.attention import Attention
from ghostkv.model.batch import Batch
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.cpu_ops import CPUOps
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.pull import resolve_model
from ghostkv.model.shape import ModelShape
from ghostkv.model.threads import available_threads, compute
from ghostkv.step import BLOCK_TOKENS, Row, StepPlan

CODECS = {"bfloat16": torch.bfloat16, "int8": torch.int8}


def filled(shape: ModelShape, blocks: int, dtype: torch.dtype) -> KVTensors:
    """A pool of numbers as they may stand there: memory that was never written is not read from memory."""
    kv = KVTensors(shape, blocks, dtype, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    for layer in kv.layers:
        for part in (layer.keys, layer.values):
            if dtype is torch.int8:
                part.random_(-127, 128, generator=generator)
            else:
                part.normal_(generator=generator)
        if layer.scales is not None:
            layer.scales.fill_(1 / 64)
    return kv


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--keys", type=int, default=256, help="of each sequence")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=available_threads())
    asked = parser.parse_args()
    shape = open_checkpoint(resolve_model(asked.model, print)).shape
    width = -(-asked.keys // BLOCK_TOKENS)
    tables = np.random.default_rng(0).permutation(asked.sequences * width).astype(np.int32).reshape(-1, width)
    rows = tuple(Row(str(i), (0,), asked.keys - 1, table, ()) for i, table in enumerate(tables))
    batch = Batch.of(StepPlan(0, 0.0, rows))
    ops = CPUOps(shape, {}, asked.threads)
    plain = Attention(bias=None, head_norm=None, rope=None, scale=1.0, window=None)
    queries = torch.randn(len(rows), shape.heads * shape.head_size)
    out = torch.zeros_like(queries)
    pools = {name: filled(shape, tables.size, dtype) for name, dtype in CODECS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in CODECS}
    with compute(asked.threads):
        for turn in range(asked.repeats + 1):
            spent = dict.fromkeys(CODECS, 0.0)
            for layer in range(shape.layers):
                for name, kv in pools.items():
                    queries.normal_()  # digits are read with queries that are turned in place
                    start = time.perf_counter()
                    ops.attend(queries, kv.layers[layer], batch, plain, out, shape)
                    spent[name] += time.perf_counter() - start
            if turn:  # the first compiles
                for name, total in spent.items():
                    seconds[name].append(total)
    row: dict[str, object] = {"sequences": asked.sequences, "keys": asked.keys, "threads": asked.threads}
    for name, found in seconds.items():
        row |= {f"{name}_ms": 1e3 * min(found), f"{name}_median_ms": 1e3 * median(found)}
    ratios = [ours / plain for ours, plain in zip(seconds["int8"], seconds["bfloat16"], strict=True)]
    row |= {"ratio": min(seconds["int8"]) / min(seconds["bfloat16"]), "median_ratio": median(ratios)}
    print(row)
    print(f"written to {append('attention', [row])}")


if __name__ == "__main__":
    main()
