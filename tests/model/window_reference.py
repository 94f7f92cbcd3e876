"""StreamingLLM over a Llama checkpoint as its definition: one token at a time, plain float32 torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from ghostkv.model.shape import ModelShape
from ghostkv.model.threads import compute


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """x [n, heads, size] by RoPE, half-split pairs."""
    size = x.shape[-1]
    angles = torch.outer(positions.double(), theta ** (-torch.arange(0, size, 2).double() / size))
    turn = torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    pairs = torch.complex(x[..., : size // 2].double(), x[..., size // 2 :].double()) * turn
    return torch.cat([pairs.real, pairs.imag], dim=-1).float()


def norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean() + epsilon) * weight


def reference_logits(
    weights: Mapping[str, torch.Tensor], shape: ModelShape, ids: Sequence[int], sinks: int, recent: int
) -> torch.Tensor:
    """Logits [len(ids), vocab]; token t sees the first `sinks` tokens and its last `recent`, itself included."""
    with compute(1):  # threads gain nothing on single rows
        return _logits(weights, shape, ids, sinks, recent)


def _logits(
    weights: Mapping[str, torch.Tensor], shape: ModelShape, ids: Sequence[int], sinks: int, recent: int
) -> torch.Tensor:
    keys: list[list[torch.Tensor]] = [[] for _ in range(shape.layers)]
    values: list[list[torch.Tensor]] = [[] for _ in range(shape.layers)]
    embedding = weights["model.embed_tokens.weight"]
    rope = shape.attention[0].rope
    assert rope is not None and rope.scaling is None
    theta = rope.theta
    out = []
    for t, token in enumerate(ids):
        visible = [u for u in range(t + 1) if u < sinks or u > t - recent]
        places = torch.arange(len(visible))
        x = embedding[token]
        for layer in range(shape.layers):
            w = {name: weights[f"model.layers.{layer}.{name}.weight"] for name in NAMES}
            h = norm(x, w["input_layernorm"], shape.norm_eps)
            keys[layer].append((w["self_attn.k_proj"] @ h).view(shape.kv_heads, -1))
            values[layer].append((w["self_attn.v_proj"] @ h).view(shape.kv_heads, -1))
            q = rotate((w["self_attn.q_proj"] @ h).view(1, shape.heads, -1), places[-1:], theta)
            k = rotate(torch.stack([keys[layer][u] for u in visible]), places, theta)
            v = torch.stack([values[layer][u] for u in visible])
            k, v = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for part in (k, v))
            scores = torch.einsum("hd,nhd->hn", q[0], k) * shape.head_size**-0.5
            attended = torch.einsum("hn,nhd->hd", scores.softmax(dim=-1), v).reshape(-1)
            x = x + w["self_attn.o_proj"] @ attended
            h = norm(x, w["post_attention_layernorm"], shape.norm_eps)
            x = x + w["mlp.down_proj"] @ (F.silu(w["mlp.gate_proj"] @ h) * (w["mlp.up_proj"] @ h))
        head = embedding if shape.tied else weights["lm_head.weight"]
        out.append(head @ norm(x, weights["model.norm.weight"], shape.norm_eps))
    return torch.stack(out)


NAMES = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
