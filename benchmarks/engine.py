"""The engine alone, in bfloat16 and int8: tokens per second at several batch sizes, where time goes, and the roofline.

Appends to results/engine.jsonl.
"""

from __future__ import annotations

from dataclasses import asdict

from record import append

from ghostkv.bench.engine import Workload, bench_engine
from ghostkv.config import EngineConfig
from ghostkv.model.pull import resolve_model


def main() -> None:
    path, workload = resolve_model("smollm2", print), Workload()
    rows: list[dict[str, object]] = []
    for config in (EngineConfig(dtype="bfloat16"), EngineConfig(dtype="int8")):
        for cell in bench_engine(path, config, workload, print):
            shares = "  ".join(f"{part} {share:.1%}" for part, share in cell.shares.items())
            reached = f"{cell.roofline.share:.0%} of what {cell.roofline.bound} allows"
            print(f"{config.dtype} x {cell.sequences}: {cell.tokens_per_second:.1f} tokens/s, {reached}; {shares}")
            about = {"workload": asdict(workload), "config": asdict(config)}
            rows.append(asdict(cell) | {"roofline_share": round(cell.roofline.share, 3)} | about)
    print(f"written to {append('engine', rows)}")


if __name__ == "__main__":
    main()
