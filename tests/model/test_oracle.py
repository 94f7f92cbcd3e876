"""The model against transformers on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoints import write_hf_checkpoint
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.export import export_hf
from ghostkv.request import Message
from ghostkv.text.template import ChatTemplate
from model.lab import Lab, request, teacher_forced
from model.oracle import Model, all_logits, greedy_agrees, kl, oracle

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "List three prime numbers greater than 50.",
    "Explain photosynthesis to a child.",
    "def fibonacci(n):",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "Who wrote Hamlet, and when?",
    "Summarise the plot of Robinson Crusoe in two sentences.",
    "What is 17 * 23?",
    "Name five countries in South America.",
    "Write a SQL query that counts the rows of a table called users.",
    "Describe a sunset over the mountains.",
    "How do vaccines work?",
    "What does HTTP status 404 mean?",
    "Tell me a joke about cats.",
    "What is the difference between a virus and a bacterium?",
    "Continue: Once upon a time in a small village",
    "How many legs does a spider have?",
]
TOKENS = 64


@pytest.fixture(scope="module")
def exported(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_hf(open_checkpoint(smollm2_path), tmp_path_factory.mktemp("hf") / "smollm2")


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[list[int]]:
    checkpoint = open_checkpoint(smollm2_path)
    assert checkpoint.template is not None
    template = ChatTemplate(checkpoint.template, checkpoint.tokenizer)
    return [template.render_ids([Message("user", question)]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def reference(smollm2_path: Path, exported: Path) -> Model:
    model = oracle(exported, torch.float32)  # the export is bfloat16; the oracle takes the unrounded values
    missing = model.load_state_dict(open_checkpoint(smollm2_path).weights(torch.float32), strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys
    return model


def test_float32_greedy_ids_equal_transformers(smollm2_path: Path, reference: Model, prompts: list[list[int]]) -> None:
    found = greedy_agrees(Lab(smollm2_path, torch.float32), reference, prompts, TOKENS)
    assert all(len(ids) == TOKENS for ids in found)


def test_bfloat16_is_as_close_to_float32_as_transformers_is(
    smollm2_path: Path, exported: Path, reference: Model, prompts: list[list[int]]
) -> None:
    half, lab = oracle(exported, torch.bfloat16), Lab(smollm2_path, torch.bfloat16)
    ours_kl, theirs_kl = [], []
    engine = lab.engine(blocks=512)
    for i, prompt in enumerate(prompts[:8]):  # transformers takes long where the processor has no bfloat16
        ids = prompt + engine.run([request(str(i), prompt, TOKENS)]).ids[str(i)]
        truth = all_logits(reference, ids[:-1]).log_softmax(-1)
        table = np.arange(100, 100 + len(ids) // 16 + 1, dtype=np.int32)
        ours = teacher_forced(engine.runner, ids[:-1], table)
        theirs = all_logits(half, ids[:-1])
        best = truth.topk(2).values
        clear = best[:, 0] - best[:, 1] > 1
        assert torch.equal(ours.argmax(-1)[clear], truth.argmax(-1)[clear])
        ours_kl.append(kl(truth, ours))
        theirs_kl.append(kl(truth, theirs))
    mean_ours, mean_theirs = float(torch.cat(ours_kl).mean()), float(torch.cat(theirs_kl).mean())
    print(f"mean KL to float32: ghostkv {mean_ours:.2e}, transformers {mean_theirs:.2e}")
    assert mean_ours <= 1.2 * mean_theirs


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden": 72, "heads": 3, "kv_heads": 3, "intermediate": 100},
        {"hidden": 126, "heads": 6, "kv_heads": 2, "intermediate": 77, "tied": False, "rope_theta": 500000.0},
        {"hidden": 96, "heads": 2, "kv_heads": 1, "intermediate": 333, "head_size": 128, "layers": 3, "shards": 3},
        {"hidden": 64, "heads": 16, "kv_heads": 1, "intermediate": 48, "seed": 5},
    ],
)
def test_random_checkpoints_of_odd_sizes(sizes: dict[str, Any], tmp_path: Path) -> None:
    path = write_hf_checkpoint(tmp_path / "model", **sizes)
    generator = np.random.default_rng(0)
    lab = Lab(path, torch.float32)
    prompts = [generator.integers(0, lab.shape.vocab, length).tolist() for length in (1, 2, 15, 16, 17, 100)]
    greedy_agrees(lab, oracle(path, torch.float32), prompts, 24)
