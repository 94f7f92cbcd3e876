"""ghostkv's engine as a peer: greedy, exactly `tokens` each, KV ample. Arguments: model path, KV bytes."""

from __future__ import annotations

import sys
from pathlib import Path

from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.engine.clock import MonotonicClock
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.kv.pool import BlockPool
from ghostkv.model.load import load_model
from ghostkv.request import GenerationState, Sampling, SegmentRequest
from ghostkv.residency import policy
from ghostkv.text.detokenizer import Detokenizer
from protocol import serve


def main() -> None:
    config = EngineConfig(kv_budget=int(sys.argv[2]))
    model = load_model(Path(sys.argv[1]), config)
    checkpoint = model.checkpoint

    def run(rows: list[list[int]], tokens: int) -> int:
        limits = Limits.of(config, checkpoint.shape.context)
        scheduler = Scheduler(BlockPool(model.blocks), limits, Detokenizer(checkpoint.tokenizer))
        engine = Engine(scheduler, model.runner, MonotonicClock())
        for index, ids in enumerate(rows):
            greedy = Sampling(temperature=0.0)
            engine.add(SegmentRequest(str(index), tuple(ids), greedy, GenerationState(), policy("full"), tokens))
        generated = 0
        while not engine.idle:
            generated += sum(len(delta.tokens) for delta in engine.step())
        return generated

    serve(run, checkpoint.shape.vocab, {"engine": "ghostkv", "dtype": config.dtype, "manifest": model.manifest})


if __name__ == "__main__":
    main()
