"""transformers on the same weights, and how greedy decoding is compared with it."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from model.lab import Lab, request

Model = torch.nn.Module


def oracle(path: Path, dtype: torch.dtype) -> Model:
    model: Model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager")
    return model.eval()


def all_logits(model: Model, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
        return logits.float()


def greedy_agrees(lab: Lab, model: Model, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Our greedy ids, checked.

    Each is the oracle's argmax given the same prefix, or the oracle's two best are 1e-4 close.
    """
    run = lab.engine(blocks=512).run(request(str(i), ids, tokens) for i, ids in enumerate(prompts))
    for i, prompt in enumerate(prompts):
        ids = prompt + run.ids[str(i)]
        logits = all_logits(model, ids[:-1])[len(prompt) - 1 :]
        ours = torch.stack([run.rows(str(i))[at] for at in range(len(prompt), len(ids))])
        assert (ours - logits).abs().max() < 1e-3
        best = logits.topk(2)
        for at in (best.indices[:, 0] != torch.tensor(run.ids[str(i)])).nonzero().flatten().tolist():
            gap = float(best.values[at, 0] - best.values[at, 1])
            print(f"prompt {i}, token {at}: the oracle's two best are {gap:.2e} apart")
            assert gap < 1e-4
    return [run.ids[str(i)] for i in range(len(prompts))]


def kl(truth: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return (truth.exp() * (truth - logits.log_softmax(-1))).sum(-1)
