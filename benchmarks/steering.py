"""Does a control vector keep a style over a flushed boundary, and is it better than a style sentence?

Segment 1 is written under an instruction that the flush then drops. Segment 2 starts from the bare question and a tail
of segment 1, plus what the arm carries: nothing, a style sentence, a vector at a share of the residual norm, or both.
"full" keeps instruction and text: the ceiling. Prints means with 95 % intervals over prompts, paired with "none".
Appends to results/steering.jsonl.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from record import append
from style_texts import INSTRUCTIONS, PAIRS, SENTENCES, TOPICS, VALIDATION, topics

from ghostkv.backends.embedded import EmbeddedBackend
from ghostkv.config import EngineConfig
from ghostkv.model.load import load_model
from ghostkv.model.pull import resolve_model
from ghostkv.model.steering import SHARE, SteeringBank, learn
from ghostkv.request import NO_STEERING, GenerationState, Message, Sampling, SegmentRequest, Steering
from ghostkv.residency import policy
from ghostkv.text.template import ChatTemplate
from ghostkv.text.tokenizer import Tokenizer

LAYERS = (6, 10, 14, 18, 22)
SEGMENT, SCORED = 100, 12  # tokens of a segment; prompts whose second segment is scored without steering
TAILS = {64: None, 0: ("none", "sentence", "vector 0.1")}  # tail tokens -> arms (None: all); 64 is the product's tail
NEUTRAL = "Write a short text."
CONFIG = EngineConfig(step_tokens=256, max_sequences=64)

_CASUAL = frozenset(
    [
        "yeah",
        "yep",
        "nope",
        "nah",
        "hey",
        "wow",
        "ok",
        "okay",
        "gonna",
        "wanna",
        "gotta",
        "kinda",
        "sorta",
        "dunno",
        "cuz",
        "guys",
        "dude",
        "man",
        "stuff",
        "cool",
        "awesome",
        "super",
        "totally",
        "basically",
        "honestly",
        "seriously",
        "pretty",
        "lol",
        "haha",
        "tons",
        "crazy",
        "folks",
        "yay",
    ]
)
_FIRST = frozenset(["i", "me", "my", "mine", "myself", "i'm", "i've", "i'd", "i'll"])
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def trait_score(trait: str, text: str) -> float:
    """Marks of the trait per 100 words: contractions and casual words; first-person singular; exclamation marks."""
    words = [word.casefold().replace("’", "'") for word in _WORD.findall(text)]
    marks = {
        "casual": sum(word in _CASUAL or ("'" in word and not word.endswith("'s")) for word in words),
        "first person": sum(word in _FIRST for word in words),
        "excited": text.count("!"),
    }
    return 100 * marks[trait] / max(len(words), 1)


def rep4(ids: Sequence[int]) -> float:
    """Share of 4-grams that occurred before, in percent."""
    grams = [tuple(ids[i : i + 4]) for i in range(len(ids) - 3)]
    return 100 * (1 - len(set(grams)) / len(grams)) if grams else 0.0


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    tokens: int
    seed: int
    steering: Steering = NO_STEERING


@dataclass(frozen=True)
class Text:
    ids: tuple[int, ...]
    text: str
    logprob: float  # mean over its tokens, nats, of the model that wrote it


class Bench:
    def __init__(self, config: EngineConfig, model: Path) -> None:
        self.backend = EmbeddedBackend.load(model, config, print)
        template = self.backend.template
        assert template is not None
        self.template: ChatTemplate = template

    def prompt(self, *parts: str) -> tuple[int, ...]:
        return tuple(self.template.render_ids([Message("user", "\n\n".join(filter(None, parts)))]))

    def write(self, jobs: Sequence[Job]) -> list[Text]:
        async def one(index: int, job: Job) -> Text:
            eos = self.backend.tokenizer.eos_ids
            sampling = Sampling(0.8, top_p=0.95, logprobs=0, seed=job.seed, min_tokens=job.tokens, terminators=eos)
            request = SegmentRequest(
                str(index), job.prompt, sampling, GenerationState(), policy("full"), job.tokens, "", job.steering
            )
            deltas = [delta async for delta in self.backend.generate(request)]
            tokens = [token for delta in deltas for token in delta.tokens]
            mean = float(np.mean([token.logprob for token in tokens if token.logprob is not None]))
            return Text(tuple(token.id for token in tokens), "".join(delta.text for delta in deltas), mean)

        async def every() -> list[Text]:
            return await asyncio.gather(*(one(i, job) for i, job in enumerate(jobs)))

        return asyncio.run(every())

    def plain_logprob(self, prompt: tuple[int, ...], ids: tuple[int, ...]) -> float:
        """Mean log-probability of `ids` under the model without steering, nats."""
        return float(np.mean(asyncio.run(self.backend.score((*prompt, *ids), len(prompt)))))


def learn_bank(model: Path, file: Path) -> None:
    """One vector per trait and layer, named trait@layer."""
    loaded = load_model(model, CONFIG, print)
    source, tokenizer = loaded.checkpoint.template, loaded.checkpoint.tokenizer
    assert source is not None
    head = ChatTemplate(source, tokenizer).render_ids([Message("user", NEUTRAL)])
    names, layers, vectors = [], [], []
    for trait, pairs in PAIRS.items():
        positive, negative = (examples(head, tokenizer, texts) for texts in zip(*pairs, strict=True))
        for layer in LAYERS:
            names.append(f"{trait}@{layer}")
            layers.append(layer)
            vectors.append(learn(loaded.runner, positive, negative, layer))
    SteeringBank(loaded.checkpoint.digest, tuple(names), tuple(layers), torch.stack(vectors)).save(file)


def examples(head: list[int], tokenizer: Tokenizer, texts: Iterable[str]) -> list[tuple[list[int], int]]:
    return [([*head, *tokenizer.encode(text)], len(head)) for text in texts]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % interval over prompts."""
    x = np.array(values)
    return float(x.mean()), float(1.96 * x.std(ddof=1) / len(x) ** 0.5)


def choose_layer(bench: Bench) -> tuple[int, list[dict[str, object]]]:
    """The layer whose vectors move their traits most at 10 % of the norm, in units of the unsteered spread."""
    asked = [bench.prompt(f"Write a short text about {topic}.") for topic in topics(VALIDATION)]
    rows: list[dict[str, object]] = []
    plain = bench.write([Job(prompt, 60, i) for i, prompt in enumerate(asked)])
    gains = dict.fromkeys(LAYERS, 0.0)
    for trait in PAIRS:
        base = [trait_score(trait, text.text) for text in plain]
        jobs = [
            Job(prompt, 60, i, Steering.of({f"{trait}@{layer}": 1.0}))
            for layer in LAYERS
            for i, prompt in enumerate(asked)
        ]
        texts = bench.write(jobs)
        for k, layer in enumerate(LAYERS):
            mine = texts[k * len(asked) : (k + 1) * len(asked)]
            score = float(np.mean([trait_score(trait, text.text) for text in mine]))
            rep = float(np.mean([rep4(text.ids) for text in mine]))
            gains[layer] += (score - float(np.mean(base))) / (float(np.std(base)) + 1.0)
            rows.append({"part": "layer", "trait": trait, "layer": layer, "score": score, "rep4": rep})
            print(f"{trait:>13} layer {layer:>2}: score {score:6.2f} (plain {np.mean(base):5.2f})  rep-4 {rep:4.1f} %")
    return max(gains, key=lambda layer: gains[layer]), rows


def arms(trait: str, layer: int) -> dict[str, tuple[bool, Steering]]:
    """Name -> (style sentence, steering)."""

    def at(share: float) -> Steering:
        return Steering.of({f"{trait}@{layer}": share / SHARE})

    return {
        "none": (False, NO_STEERING),
        "sentence": (True, NO_STEERING),
        "vector 0.05": (False, at(0.05)),
        "vector 0.1": (False, at(0.1)),
        "vector 0.2": (False, at(0.2)),
        "both 0.1": (True, at(0.1)),
    }


def measure(bench: Bench, trait: str, layer: int) -> list[dict[str, object]]:
    listed = topics(TOPICS)
    questions = [f"Write a text about {topic}." for topic in listed]
    told = [bench.prompt(f"{question} {INSTRUCTIONS[trait]}") for question in questions]
    first = bench.write([Job(prompt, SEGMENT, i) for i, prompt in enumerate(told)])
    rows = [row(trait, "segment 1", None, first, None, [])]
    full = [Job((*p, *text.ids), SEGMENT, 1000 + i) for i, (p, text) in enumerate(zip(told, first, strict=True))]
    rows.append(row(trait, "full", None, bench.write(full), None, []))
    for tail, chosen in TAILS.items():
        kept = [text.ids[SEGMENT - tail :] for text in first]
        bare = [(*bench.prompt(question), *ids) for question, ids in zip(questions, kept, strict=True)]
        none: list[Text] | None = None
        for name, (sentence, steering) in arms(trait, layer).items():
            if chosen is not None and name not in chosen:
                continue
            asked = [(*bench.prompt(q, SENTENCES[trait] if sentence else ""), *t) for q, t in zip(questions, kept)]
            texts = bench.write([Job(prompt, SEGMENT, 1000 + i, steering) for i, prompt in enumerate(asked)])
            plain = [bench.plain_logprob(p, text.ids) for p, text in zip(bare[:SCORED], texts)]
            none = texts if none is None else none
            rows.append(row(trait, name, tail, texts, none, plain))
    return rows


def row(
    trait: str, arm: str, tail: int | None, texts: list[Text], none: list[Text] | None, plain: list[float]
) -> dict[str, object]:
    scores = [trait_score(trait, text.text) for text in texts]
    mean, half = interval(scores)
    found: dict[str, object] = {
        "part": "arm",
        "trait": trait,
        "tail": tail,
        "arm": arm,
        "prompts": len(texts),
        "score": mean,
        "score_95": half,
        "rep4": float(np.mean([rep4(text.ids) for text in texts])),
        "own_logprob": float(np.mean([text.logprob for text in texts])),
        "plain_logprob": float(np.mean(plain)) if plain else None,
    }
    line = f"{trait:>13} tail {tail if tail is not None else '-':>2} {arm:>11}: {mean:6.2f} ± {half:4.2f}"
    if none is not None:
        gain, gain_half = interval([s - trait_score(trait, n.text) for s, n in zip(scores, none, strict=True)])
        found |= {"gain": gain, "gain_95": gain_half}
        line += f"  gain {gain:+6.2f} ± {gain_half:4.2f}"
    monitors = f"  rep-4 {found['rep4']:4.1f} %  log-prob {found['own_logprob']:6.3f}"
    print(line + monitors + (f"  unsteered {found['plain_logprob']:6.3f}" if plain else ""), flush=True)
    return found


def main() -> None:
    model = resolve_model("smollm2", print)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "bank.safetensors"
        learn_bank(model, file)
        bench = Bench(EngineConfig(steering=str(file), step_tokens=CONFIG.step_tokens, max_sequences=64), model)
    layer, rows = choose_layer(bench)
    print(f"layer {layer}")
    for trait in PAIRS:
        rows += [found | {"layer": layer} for found in measure(bench, trait, layer)]
    bench.backend.close()
    print(f"written to {append('steering', rows)}")


if __name__ == "__main__":
    main()
