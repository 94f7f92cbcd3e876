"""ghostkv's engine beside vLLM's CPU build and llama.cpp: one model, prompt and output length, equal KV bytes, in turn.

ghostkv runs with bfloat16 weights, with int8 weights, and with int8 KV too; vLLM with bfloat16; llama.cpp with Q8_0 and
Q4_1. Each cell runs all alternately, and a ratio is the median over the rounds. KV is ample for all: this measures
engines, not residency. Appends to results/engine_vs_peers.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from llama_environment import llama_cpp, quantized
from peers import LlamaBench, Peer, Worker
from record import append
from vllm_environment import cpu_variables, vllm_python

from ghostkv.config import cache_dir
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.export import export_hf
from ghostkv.model.pull import resolve_model

KV_BYTES = 1 << 30
PEERS = ("vllm", "llama.cpp")
OURS = (("bfloat16", "bfloat16", "auto"), ("int8", "int8", "auto"), ("int8+KV", "int8", "int8"))  # name, weights, KV
_F16 = 2  # bytes


def ours(model: Path) -> list[Peer]:
    """ghostkv in each precision, of weights and of KV."""
    python = Path(sys.executable)
    return [
        Worker(f"ghostkv {name}", python, "ghostkv_worker.py", str(model), str(KV_BYTES), dtype, kv_dtype)
        for name, dtype, kv_dtype in OURS
    ]


def vllm(model: Path, environment: Path) -> list[Peer]:
    """vLLM with bfloat16."""
    exported = cache_dir() / "peers" / "smollm2-bf16"
    if not exported.exists():
        export_hf(open_checkpoint(model), exported)
    python = vllm_python(environment)
    settings = cpu_variables(environment)
    peer = Worker("vllm bfloat16", python, "vllm_worker.py", str(exported), str(KV_BYTES), environment=settings)
    peer.about["environment"] = sorted(settings)
    return [peer]


def llama(model: Path, environment: Path) -> list[Peer]:
    """llama.cpp with the model's own Q4_1 file, and with Q8_0 made from it: both stand for the values of that file."""
    programs = llama_cpp(environment)
    q8 = quantized(programs, model, "Q8_0", environment / f"{model.stem}-Q8_0.gguf")
    tokens = KV_BYTES // open_checkpoint(model).shape.kv_bytes_per_token(_F16) // 256 * 256
    return [
        LlamaBench("Q8_0", programs, q8, tokens, "the Q4_1 file, by llama-quantize --allow-requantize"),
        LlamaBench("Q4_1", programs, model, tokens, "the model's own file"),
    ]


def main() -> None:
    peers_dir = cache_dir() / "peers"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64, 128])
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--vllm-environment", type=Path, default=peers_dir / "vllm")
    parser.add_argument("--llama-environment", type=Path, default=peers_dir / "llama.cpp")
    arguments = parser.parse_args()

    model = resolve_model("smollm2", print)
    own = ours(model)
    others = vllm(model, arguments.vllm_environment) if "vllm" in arguments.peers else []
    others += llama(model, arguments.llama_environment) if "llama.cpp" in arguments.peers else []
    every = own + others
    for peer in every:
        peer.run(2, arguments.prompt, 8)
    rows = []
    print("output tokens per second, prefill included")
    print("sequences " + " ".join(f"{peer.name:>17}" for peer in every), flush=True)
    for sequences in arguments.sequences:
        cell = (sequences, arguments.prompt, arguments.tokens)
        rounds = [{peer.name: peer.run(*cell) for peer in every} for _ in range(arguments.repeats)]
        rows.append(_row(cell, rounds, own, others))
    for peer in every:
        peer.close()
    _print_ratios(rows)
    print(f"written to {append('engine_vs_peers', rows)}")


def _row(
    cell: tuple[int, int, int], rounds: list[dict[str, float]], own: list[Peer], others: list[Peer]
) -> dict[str, object]:
    every = own + others
    rates = {peer.name: round(median(each[peer.name] for each in rounds), 1) for peer in every}
    print(f"{cell[0]:>9} " + " ".join(f"{rate:>17}" for rate in rates.values()), flush=True)
    ratios = {
        f"{mine.name} / {peer.name}": round(median(each[mine.name] / each[peer.name] for each in rounds), 3)
        for mine in own
        for peer in others
    }
    return {
        "sequences": cell[0],
        "prompt": cell[1],
        "tokens": cell[2],
        "tokens_per_second": rates,
        "ratios": ratios,
        "rounds": [{name: round(rate, 1) for name, rate in each.items()} for each in rounds],
        "configurations": {peer.name: peer.about for peer in every},
    }


def _print_ratios(rows: list[dict[str, object]]) -> None:
    print(f"\n{'ratio':<36}" + "".join(f"{row['sequences']!s:>8}" for row in rows))
    ratios = [row["ratios"] for row in rows]
    for name in ratios[0] if ratios and isinstance(ratios[0], dict) else ():
        print(f"{name:<36}" + "".join(f"{each[name]:>8.2f}" for each in ratios if isinstance(each, dict)))


if __name__ == "__main__":
    main()
