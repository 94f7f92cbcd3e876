"""ghostkv's engine as a peer: greedy, exactly `tokens` each, KV ample.

Arguments: model path, KV bytes, dtype, KV dtype.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ghostkv.bench.engine import decode
from ghostkv.config import EngineConfig
from ghostkv.model.load import load_model
from protocol import serve


def main() -> None:
    config = EngineConfig(kv_budget=int(sys.argv[2]), dtype=sys.argv[3], kv_dtype=sys.argv[4])
    model = load_model(Path(sys.argv[1]), config)

    def run(rows: list[list[int]], tokens: int) -> int:
        return sum(len(delta.tokens) for delta in decode(model, config, model.runner, rows, tokens))

    about = {"engine": "ghostkv", "dtype": config.dtype, "kv_dtype": config.kv_dtype, "manifest": model.manifest}
    serve(run, model.checkpoint.shape.vocab, about)


if __name__ == "__main__":
    main()
