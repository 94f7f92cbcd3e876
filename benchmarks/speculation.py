"""What speculation gains: tokens per second with and without it, by batch size and kind of text.

The engine alone, greedy, KV ample. With and without take turns within each repeat; the outputs are compared. Copying
asks for a text of the prompt again, prose for a story; random prompts are ids drawn at random, so nothing in them
helps. Appends to results/speculation.jsonl, and prints the table.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pydoc_data.topics import topics
from statistics import median

from record import append

from ghostkv.bench.engine import filled
from ghostkv.config import EngineConfig
from ghostkv.engine.drafter import drafter
from ghostkv.engine.engine import Engine
from ghostkv.engine.speculation import Speculation
from ghostkv.engine.step_cost import StepCost
from ghostkv.model.load import LoadedModel, load_model, pool_bytes
from ghostkv.model.pull import resolve_model
from ghostkv.request import Message, Sampling
from ghostkv.step import BLOCK_TOKENS
from ghostkv.text.template import ChatTemplate

PROMPT = 256  # tokens of text in a prompt, about
SUBJECTS = ("a lighthouse", "two rival bakers", "a lost letter", "the last train", "a clever crow", "an old clock")
Prompt = tuple[int, ...]


def copying(model: LoadedModel, count: int) -> list[Prompt]:
    """Questions that ask for a passage again with one word changed, as edits of code and text do."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    ids = model.checkpoint.tokenizer.encode(text[: count * PROMPT * 8])
    pieces = [model.checkpoint.tokenizer.decode(ids[at * PROMPT : (at + 1) * PROMPT]) for at in range(count)]
    return _asked(model, [f"Repeat this text, with 'object' changed to 'thing':\n\n{piece}" for piece in pieces])


def prose(model: LoadedModel, count: int) -> list[Prompt]:
    """Questions that ask for stories."""
    names = (f"{SUBJECTS[i % len(SUBJECTS)]}, story number {i}" for i in range(count))
    return _asked(model, [f"Write a long story about {name}." for name in names])


def at_random(model: LoadedModel, count: int) -> list[Prompt]:
    """Ids without any order."""
    numbers = random.Random(1)
    vocabulary = model.checkpoint.shape.vocab
    return [tuple(numbers.randrange(1000, vocabulary - 1000) for _ in range(PROMPT)) for _ in range(count)]


KINDS = {"copying": copying, "prose": prose, "random": at_random}


def _asked(model: LoadedModel, questions: Sequence[str]) -> list[Prompt]:
    source, tokenizer = model.checkpoint.template, model.checkpoint.tokenizer
    if source is None:
        return [tuple(tokenizer.encode(question)) for question in questions]
    template = ChatTemplate(source, tokenizer)
    return [tuple(template.render_ids([Message("user", question)])) for question in questions]


def run(
    model: LoadedModel, config: EngineConfig, prompts: Sequence[Prompt], tokens: int, sampling: Sampling
) -> tuple[Engine, float, list[list[int]]]:
    """Exactly `tokens` tokens after each prompt, all at once: the engine, seconds after the prefill, the ids."""
    speculation = Speculation(drafter(config.speculation), cost=StepCost(model.tile_rows))
    engine = filled(model, config, model.runner, prompts, tokens, sampling, speculation)
    found: list[list[int]] = [[] for _ in prompts]
    begun = None
    while not engine.idle:
        for delta in engine.step():
            found[int(delta.request_id)] += [token.id for token in delta.tokens]
        if begun is None and all(found):
            begun, first = time.perf_counter(), sum(map(len, found))
    seconds = time.perf_counter() - (begun or 0.0)
    return engine, seconds / (sum(map(len, found)) - first), found


def measure(
    model: LoadedModel, config: EngineConfig, kind: str, count: int, tokens: int, repeats: int, sampling: Sampling
) -> dict[str, object]:
    """One row of the table: medians over the repeats."""
    prompts = KINDS[kind](model, count)
    off, on = replace(config, speculation="off"), replace(config, speculation="lookup")
    pairs = []
    for _ in range(repeats):
        (_, plain_s, plain), (engine, lookup_s, lookup) = (
            run(model, asked, prompts, tokens, sampling) for asked in (off, on)
        )
        if plain != lookup:
            raise SystemExit(f"{kind}, {count}: speculation changed an output")
        pairs.append((1 / plain_s, 1 / lookup_s, plain_s / lookup_s))
    stats = engine.stats
    return {
        "text": kind,
        "sequences": count,
        "dtype": config.dtype,
        "temperature": sampling.temperature,
        "tokens": tokens,
        "off": median(pair[0] for pair in pairs),
        "lookup": median(pair[1] for pair in pairs),
        "gain": median(pair[2] for pair in pairs),
        "drafted_per_token": stats.drafted_tokens / stats.generated_tokens,
        "accepted_per_drafted": stats.accepted_tokens / max(stats.drafted_tokens, 1),
        "tokens_per_row": stats.generated_tokens / (stats.generated_tokens - stats.accepted_tokens),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--temperature", type=float, default=0.0)
    asked = parser.parse_args()
    config, path = EngineConfig(dtype=asked.dtype), resolve_model("smollm2", print)
    blocks = max(asked.sequences) * -(-(2 * PROMPT + asked.tokens) // BLOCK_TOKENS)
    config = replace(config, kv_budget=pool_bytes(path, config, blocks))
    model = load_model(path, config, print)
    sampling = Sampling(temperature=asked.temperature, seed=1)
    run(model, config, copying(model, 2), 16, sampling)  # faults pages in
    rows = []
    for kind in asked.kinds:
        for count in asked.sequences:
            rows.append(measure(model, config, kind, count, asked.tokens, asked.repeats, sampling))
            shown = (f"{value:.2f}" if isinstance(value, float) else str(value) for value in rows[-1].values())
            print("  ".join(f"{text:>9}" for text in shown), flush=True)
    print(f"written to {append('speculation', rows)}")


if __name__ == "__main__":
    main()
