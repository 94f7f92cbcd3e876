"""The Llama architecture.

RMSNorm, rotary attention with grouped KV heads, SwiGLU. One layer reads as its definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ghostkv.model.batch import Batch
from ghostkv.model.gemm import Linear, prepare
from ghostkv.model.int8 import rotate
from ghostkv.model.int8_weights import int8_linear
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.ops import Ops
from ghostkv.model.shape import ModelShape
from ghostkv.model.steering import NO_SHIFTS, Shift


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights; projections that read the same input are fused."""

    attention_norm: torch.Tensor
    qkv: Linear
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


class Buffers:
    """Activations that the operators write, allocated once for the largest step."""

    def __init__(self, shape: ModelShape, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        def buffer(width: int, kind: torch.dtype = dtype) -> torch.Tensor:
            return torch.zeros(rows, width, dtype=kind, device=device)

        attention, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.residual = buffer(shape.hidden, torch.float32)
        self.normed = buffer(shape.hidden)
        self.queries = buffer(attention, torch.float32)
        self.attended = buffer(attention)
        self.gated = buffer(shape.intermediate)
        self.qkv = buffer(attention + 2 * kv, torch.float32)
        self.delta = buffer(shape.hidden, torch.float32)


class Llama:
    """Weights of a Llama checkpoint and its forward pass over a `Batch`."""

    def __init__(
        self, shape: ModelShape, weights: Mapping[str, torch.Tensor], device: torch.device, *, int8: bool = False
    ) -> None:
        """Lay out `weights` for products.

        They are a checkpoint's, computed with in their own dtype; with `int8`, `int8_weights` of them.
        """

        def take(name: str) -> torch.Tensor:
            return weights[name].to(device, copy=True)  # not mapped from a file: aligned, no page fault in a step

        def linear(prefix: str, *names: str) -> Linear:
            if int8:
                return int8_linear(shape, weights, prefix, names)
            joined = torch.cat([weights[f"{prefix}{name}.weight"] for name in names])
            return prepare(joined.to(device), gated="gate_proj" in names)

        self.shape = shape
        self.int8 = int8
        self.embedding = take("model.embed_tokens.weight")
        self.activations = torch.float32 if int8 else self.embedding.dtype
        self.final_norm = take("model.norm.weight")
        self.head = prepare(self.embedding) if shape.tied and not int8 else linear("", "lm_head")
        self.layers = []
        for i in range(shape.layers):
            at = f"model.layers.{i}"
            self.layers.append(
                Layer(
                    attention_norm=take(f"{at}.input_layernorm.weight"),
                    qkv=linear(f"{at}.self_attn.", "q_proj", "k_proj", "v_proj"),
                    output=linear(f"{at}.self_attn.", "o_proj"),
                    mlp_norm=take(f"{at}.post_attention_layernorm.weight"),
                    gate_up=linear(f"{at}.mlp.", "gate_proj", "up_proj"),
                    down=linear(f"{at}.mlp.", "down_proj"),
                )
            )
        self._rope = rope_tables(shape, device)

    @property
    def product_bytes(self) -> int:
        """Bytes of the weights of all products, the head's among them."""
        linears = [self.head]
        for layer in self.layers:
            linears += [layer.qkv, layer.output, layer.gate_up, layer.down]
        return sum(linear.outputs * linear.inputs * linear.dtype.itemsize for linear in linears)

    @property
    def weight_bytes(self) -> int:
        """Bytes of embedding and products; a tied head is laid out for its product beside the embedding."""
        return self.embedding.nbytes + self.product_bytes

    def products(self) -> dict[str, Linear]:
        """One matrix per distinct product shape, for the row self-check."""
        first = self.layers[0]
        return {
            "qkv": first.qkv,
            "output": first.output,
            "gate_up": first.gate_up,
            "down": first.down,
            "head": self.head,
        }

    def to_residual(self, vectors: torch.Tensor) -> torch.Tensor:
        """Vectors [n, hidden] of the checkpoint's basis in the basis of this model's residual stream."""
        return rotate(vectors) if self.int8 else vectors

    def forward(
        self, batch: Batch, kv: KVTensors, buffers: Buffers, ops: Ops, shifts: Mapping[int, Shift] = NO_SHIFTS
    ) -> None:
        """Compute every row and write its KV. `shifts` are added to the residual stream after the block they name.

        Leaves norm(residual) of the rows in `batch.heads` in `buffers.normed`.
        """
        b, shape, rows, epsilon = buffers, self.shape, batch.rows, self.shape.norm_eps
        ops.embed(torch.from_numpy(batch.ids), self.embedding, b.residual, rows)
        for index, (layer, own) in enumerate(zip(self.layers, kv.layers, strict=True)):
            if index == 0:
                ops.norm(b.residual, batch.every_row, layer.attention_norm, b.normed, epsilon)
            else:
                ops.add_norm(b.residual, b.delta, layer.attention_norm, b.normed, rows, epsilon)
            ops.linear(b.normed, layer.qkv, b.qkv, rows)
            ops.rotate_and_write(b.qkv, b.queries, own, batch, self._rope, shape)
            ops.attend(b.queries, own, batch, b.attended, shape)
            if batch.windowed is not None:
                ops.attend_windowed(b.queries, own, batch, batch.windowed, self._rope, b.attended, shape)
            ops.linear(b.attended, layer.output, b.delta, rows)
            ops.add_norm(b.residual, b.delta, layer.mlp_norm, b.normed, rows, epsilon)
            ops.gated(b.normed, layer.gate_up, b.gated, rows)
            ops.linear(b.gated, layer.down, b.delta, rows)
            if index in shifts:
                shifts[index].add_to(b.residual)  # before `delta`, in place: rows that do not steer are not touched
        if self.layers:
            ops.add(b.residual, b.delta, rows)
        ops.norm(b.residual, batch.heads, self.final_norm, b.normed, epsilon)


def rope_tables(shape: ModelShape, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines, float32 [context, head_size / 2].

    Angle(p, i) = p * theta**(-2i / head_size) (RoFormer, eq. 15).
    """
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), shape.rope_theta**-exponents)
    return angles.cos().float().to(device), angles.sin().float().to(device)


ARCHITECTURES = {"llama": Llama}
