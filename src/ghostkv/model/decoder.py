"""The architecture: a decoder-only transformer, of the parts that its `ModelShape` names.

RMSNorm, rotary attention with grouped KV heads, a gated MLP. One layer reads as its definition; what a family has
beside that is data of the layer, and there is no class or branch for a family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ghostkv.model.activations import ACTIVATIONS
from ghostkv.model.attention import Attention
from ghostkv.model.batch import Batch
from ghostkv.model.gemm import Linear, prepare
from ghostkv.model.int8 import rotate
from ghostkv.model.int8_weights import int8_linear
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.ops import Ops
from ghostkv.model.rope import Rope, RopeTables
from ghostkv.model.shape import ModelShape
from ghostkv.model.steering import NO_SHIFTS, Shift

_QKV = ("q_proj", "k_proj", "v_proj")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights; projections that read the same input are fused. None is a part that it does not have."""

    attention_norm: torch.Tensor
    qkv: Linear
    attention: Attention
    output: Linear
    attention_post_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    mlp_post_norm: torch.Tensor | None


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


class Decoder:
    """Weights of a checkpoint and the forward pass over a `Batch`."""

    def __init__(
        self, shape: ModelShape, weights: Mapping[str, torch.Tensor], device: torch.device, *, int8: bool = False
    ) -> None:
        """Lay out `weights` for products.

        They are a checkpoint's, computed with in their own dtype; with `int8`, `int8_weights` of them.
        """
        self.shape = shape
        self.int8 = int8
        stored = _Stored(shape, weights, device, int8=int8)
        self.embedding = stored.embedding()
        self.activations = torch.float32 if int8 else self.embedding.dtype
        self.final_norm = stored.norm("model.norm")
        self.head = stored.head(self.embedding)
        self.layers = [stored.layer(index) for index in range(shape.layers)]

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
            ops.rotate_and_write(b.qkv, b.queries, own, batch, layer.attention, shape)
            ops.attend(b.queries, own, batch, layer.attention, b.attended, shape)
            if batch.windowed is not None:
                ops.attend_windowed(b.queries, own, batch, batch.windowed, layer.attention, b.attended, shape)
            ops.linear(b.attended, layer.output, b.delta, rows)
            if layer.attention_post_norm is not None:
                ops.norm(b.delta, batch.every_row, layer.attention_post_norm, b.delta, epsilon)
            ops.add_norm(b.residual, b.delta, layer.mlp_norm, b.normed, rows, epsilon)
            ops.gated(b.normed, layer.gate_up, b.gated, rows)
            ops.linear(b.gated, layer.down, b.delta, rows)
            if layer.mlp_post_norm is not None:
                ops.norm(b.delta, batch.every_row, layer.mlp_post_norm, b.delta, epsilon)
            if index in shifts:
                shifts[index].add_to(b.residual)  # before `delta`, in place: rows that do not steer are not touched
        if self.layers:
            ops.add(b.residual, b.delta, rows)
        ops.norm(b.residual, batch.heads, self.final_norm, b.normed, epsilon)


class _Stored:
    """A checkpoint's weights by their names, laid out part by part."""

    def __init__(
        self, shape: ModelShape, weights: Mapping[str, torch.Tensor], device: torch.device, *, int8: bool
    ) -> None:
        self._shape, self._weights, self._device, self._int8 = shape, weights, device, int8
        ropes = {layer.rope for layer in shape.attention if layer.rope is not None}
        self._ropes: dict[Rope | None, RopeTables | None] = {None: None}
        self._ropes |= {rope: rope.tables(shape.head_size, shape.context, device) for rope in ropes}

    def embedding(self) -> torch.Tensor:
        """The embedding, with its factor: as rounded to its dtype as the models were trained with."""
        table = self._take("model.embed_tokens.weight")
        if self._shape.parts.embedding_by_width:
            table *= torch.tensor(math.sqrt(self._shape.hidden), dtype=table.dtype, device=table.device)
        return table

    def head(self, embedding: torch.Tensor) -> Linear:
        """The output head: of a tied model the embedding, without its factor."""
        if not self._shape.tied or self._int8:
            return self._linear("", "lm_head")
        scaled = self._shape.parts.embedding_by_width
        return prepare(self._take("model.embed_tokens.weight") if scaled else embedding)

    def norm(self, name: str) -> torch.Tensor:
        """A norm's weights; with an offset in float32, where near 1 they keep what they are stored with."""
        weight, offset = self._take(f"{name}.weight"), self._shape.parts.norm_offset
        return weight.float() + offset if offset else weight

    def layer(self, index: int) -> Layer:
        """All of one layer."""
        at, post = f"model.layers.{index}", self._shape.parts.post_norm
        return Layer(
            attention_norm=self.norm(f"{at}.input_layernorm"),
            qkv=self._linear(f"{at}.self_attn.", *_QKV),
            attention=self._attention(index, f"{at}.self_attn"),
            output=self._linear(f"{at}.self_attn.", "o_proj"),
            attention_post_norm=self.norm(f"{at}.post_attention_layernorm") if post else None,
            mlp_norm=self.norm(f"{at}.{self._shape.mlp_norm}"),
            gate_up=self._linear(f"{at}.mlp.", "gate_proj", "up_proj"),
            down=self._linear(f"{at}.mlp.", "down_proj"),
            mlp_post_norm=self.norm(f"{at}.post_feedforward_layernorm") if post else None,
        )

    def _attention(self, index: int, at: str) -> Attention:
        shape, own, bias, head_norm = self._shape, self._shape.attention[index], None, None
        if shape.parts.qkv_bias:
            bias = torch.cat([self._take(f"{at}.{name}.bias").float() for name in _QKV])
        if shape.parts.head_norm:
            head_norm = torch.cat([self.norm(f"{at}.{name}_norm").float() for name in "qk"])
        scale = shape.score_scale * (1.0 if own.rope is None else own.rope.score_scale)
        hides = own.window is not None and own.window < shape.context
        return Attention(bias, head_norm, self._ropes[own.rope], scale, own.window if hides else None)

    def _linear(self, prefix: str, *names: str) -> Linear:
        if self._int8:
            return int8_linear(self._shape, self._weights, prefix, names)
        joined = torch.cat([self._weights[f"{prefix}{name}.weight"] for name in names])
        gated = ACTIVATIONS[self._shape.activation] if "gate_proj" in names else 0
        return prepare(joined.to(self._device), gated=gated)

    def _take(self, name: str) -> torch.Tensor:
        """In memory of its own: not mapped from a file, so aligned, and no page fault in a step."""
        return self._weights[name].to(self._device, copy=True)
