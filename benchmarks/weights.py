"""What a precision of weights or KV costs in nats per token, against bfloat16. Appends to results/weights.jsonl.

Texts are teacher-forced in windows that start afresh; the difference is taken token by token, its interval over
windows (a cluster bootstrap). Without --text: the reference documentation that comes with Python. KV alone is measured
by `--dtype bfloat16 --kv-dtype int8`.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from pydoc_data.topics import topics

from record import append

from ghostkv.evaluate.lab import Lab
from ghostkv.evaluate.statistics import cluster_mean
from ghostkv.launch import engine_config, open_worker
from ghostkv.options import DEFAULTS

WINDOW = 512
REFERENCE = "bfloat16"


def windows(text: str, lab: Lab, tokens: int) -> list[tuple[int, ...]]:
    """The first `tokens` tokens of a text in windows of 512."""
    ids = lab.encode(text[: 8 * tokens])[:tokens]
    return [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)]


def log_probabilities(dtype: str, kv_dtype: str, texts: Sequence[str], tokens: int) -> list[list[list[float]]]:
    """Of every token but each window's first: [text][window][token]."""
    worker = open_worker("smollm2", engine_config(kv_budget="64MiB", dtype=dtype, kv_dtype=kv_dtype), announce=print)
    lab = Lab(worker)

    async def score(window: Sequence[int]) -> list[float]:
        return await lab.score(window[:1], window[1:])

    async def every() -> list[list[list[float]]]:
        return [[await score(window) for window in windows(text, lab, tokens)] for text in texts]

    try:
        return asyncio.run(every())
    finally:
        worker.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, action="append", help="repeatable")
    parser.add_argument("--tokens", type=int, default=9216, help="of each text")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--kv-dtype", default=DEFAULTS.kv_dtype)
    asked = parser.parse_args()
    files: Sequence[Path | None] = asked.text or (None,)
    texts = ["\n\n".join(topics.values()) if file is None else file.read_text(encoding="utf-8") for file in files]
    pair = (REFERENCE, DEFAULTS.kv_dtype), (asked.dtype, asked.kv_dtype)
    plain, other = (log_probabilities(*dtypes, texts, asked.tokens) for dtypes in pair)
    rows: list[dict[str, object]] = []
    for file, before, after in zip(files, plain, other, strict=True):
        dearer = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(before, after, strict=True)]
        extra = cluster_mean(dearer)
        row = {
            "text": "pydoc_data.topics" if file is None else file.name,
            "dtype": asked.dtype,
            "kv_dtype": asked.kv_dtype,
            "tokens": sum(map(len, dearer)),
            "nats": -sum(map(sum, before)) / sum(map(len, before)),
            "extra_nats": asdict(extra),
        }
        rows.append(row)
        print(row)
    print(f"written to {append('weights', rows)}")


if __name__ == "__main__":
    main()
