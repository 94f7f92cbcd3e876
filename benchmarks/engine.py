"""The engine alone: tokens per second at several batch sizes, and where time goes. Appends to results/engine.jsonl."""

from __future__ import annotations

from dataclasses import asdict

from record import append

from ghostkv.bench.engine import Workload, bench_engine
from ghostkv.config import EngineConfig
from ghostkv.model.pull import resolve_model


def main() -> None:
    config, workload = EngineConfig(), Workload()
    rows: list[dict[str, object]] = []
    for cell in bench_engine(resolve_model("smollm2", print), config, workload, print):
        shares = "  ".join(f"{part} {share:.1%}" for part, share in cell.shares.items())
        print(f"{cell.sequences:>4} sequences {cell.tokens_per_second:8.1f} tokens/s   {shares}", flush=True)
        rows.append(asdict(cell) | {"workload": asdict(workload), "config": asdict(config)})
    print(f"written to {append('engine', rows)}")


if __name__ == "__main__":
    main()
