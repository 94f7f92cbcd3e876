"""Weights and inputs of products as 8-bit integers, made good enough by rotation.

A row's digits share one scale, so one outlier costs all others their precision. Hence every input is rotated first by
an orthogonal matrix that spreads outliers (QuaRot, Ashkboos 2024): the residual stream and the attention's values by
matrices that are folded into the weights on both sides, the input of the down projection while computing. The function
stays the same. Sums of integers are exact, so a row cannot depend on its batch.

The value projection takes two digits per weight: most of the attention falls on the first tokens, whose values are
nearly 0 against their inputs, so that its rounding error alone costs as much as that of all other matrices together.

The compiled routines are in `int8_kernels.py`; `linear` here is their reference. Folding adds in a fixed order whatever
the number of threads, so equal checkpoints give equal integers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from ghostkv.errors import ModelError
from ghostkv.model import int8_kernels
from ghostkv.model.gemm import Linear, finish_sums
from ghostkv.model.shape import ModelShape

LARGEST = 127


def prepare_int8(weight: torch.Tensor, block: int = 1, fine: int = 0) -> Linear:
    """Quantise `weight` [outputs, inputs], float32, one scale per output.

    `block` > 1: products transform their inputs by `hadamard` in blocks of so many, and the weight absorbs the inverse.
    The last `fine` outputs get a second digit for what the first leaves: as many more rows, to be added to them.
    """
    turned = hadamard(weight.float(), block) / block
    scales = turned.abs().amax(dim=1) / LARGEST
    first = _rounded(turned, scales)
    kept = len(weight) - fine
    left = (turned - first * scales[:, None])[kept:]
    scales = torch.cat([scales, scales[kept:] / (2 * LARGEST)])
    data = torch.cat([first, _rounded(left, scales[len(weight) :])]).to(torch.int8)
    outputs, inputs = data.shape
    return Linear(outputs, inputs, torch.int8, data, scales=scales, block=block, fine=fine)


def _rounded(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    exact = torch.where(scales[:, None] > 0, weight / scales[:, None], 0.0)
    return exact.round().clamp(-LARGEST, LARGEST)


def linear(x: torch.Tensor, weight: Linear) -> torch.Tensor:
    """x [n, inputs] @ weight.T as float32, in plain torch. A row with NaN or infinity gives NaN.

    Each row's digits are its transformed values over (largest absolute value / 127), rounded to nearest even.
    """
    turned = hadamard(x.float(), weight.block)
    largest = turned.abs().amax(dim=1, keepdim=True)
    x_digits = digits_of(turned, largest).nan_to_num(0.0)
    sums = (x_digits.double() @ weight.dense().double().t()).float()
    return finish_sums(sums, weight, torch.where(largest.isfinite(), largest / LARGEST, math.nan)[:, 0])


def digits_of(turned: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """The digits of rows [n, width], as float32, whose largest absolute values are `largest` [n, 1]."""
    # Not `LARGEST / largest`: torch takes that as LARGEST times the reciprocal, which rounds twice.
    inverse = torch.full_like(largest, LARGEST) / largest
    return torch.where(largest > 0, turned * inverse, 0.0).round()


def hadamard_block(width: int) -> int:
    """The largest power of two that divides `width`."""
    return width & -width


def hadamard(x: torch.Tensor, block: int) -> torch.Tensor:
    """Each run of `block` values (a power of two) of the last axis times the Hadamard matrix, whose entries are +-1.

    Twice is `block` times the identity. Returns float32.
    """
    turned = x.float().clone(memory_format=torch.contiguous_format)
    int8_kernels.transform(turned.view(-1).numpy(), 0, turned.numel(), block)
    return turned


def rotate(x: torch.Tensor) -> torch.Tensor:
    """The last axis, float32, times one fixed orthogonal matrix per width.

    Signs, then Hadamard within blocks, then a discrete cosine transform (DCT-II) across the blocks.
    """
    width = x.shape[-1]
    block = hadamard_block(width)
    blocks = width // block
    turned = hadamard(x * (_signs(width) / math.sqrt(block)), block)
    if blocks == 1:
        return turned
    mixed = torch.zeros_like(turned)
    int8_kernels.mix(turned.view(-1).numpy(), _cosines(blocks), mixed.view(-1).numpy(), block, blocks)
    return mixed


def _cosines(size: int) -> npt.NDArray[np.float32]:
    """The orthonormal DCT-II matrix, flat."""
    entries = [
        math.sqrt((2 if j else 1) / size) * math.cos(math.pi * (i + 0.5) * j / size)
        for j in range(size)
        for i in range(size)
    ]
    return np.array(entries, dtype=np.float32)


def rotated(shape: ModelShape, weights: Mapping[str, torch.Tensor]) -> Callable[[str], torch.Tensor]:
    """Read `weights` (by Hugging Face name) as those of an equal model whose residual stream is `rotate`d.

    Norm weights move into the matrices that follow, so the head differs from the embedding also where they are tied.
    Results are float32, the embedding in its own dtype. Raises ModelError where weights stand between a product and the
    residual stream, so that no rotation moves past them.
    """
    _check_foldable(shape)

    def after(norm: str, name: str) -> torch.Tensor:
        return rotate(weights[name].float() * weights[norm].float())

    def read(name: str) -> torch.Tensor:
        norm, rest = _place(name)
        match rest:
            case "q_proj.weight" | "k_proj.weight" | "gate_proj.weight" | "up_proj.weight":
                return after(norm, name)
            case "v_proj.weight":
                return _by_head(after(norm, name).t(), shape).t()
            case "q_proj.bias" | "k_proj.bias" | "v_proj.bias" | "q_norm.weight" | "k_norm.weight":
                small = weights[name].float()
                return _by_head(small, shape) if rest == "v_proj.bias" else small
            case "o_proj.weight":
                return rotate(_by_head(weights[name].float(), shape).t()).t()
            case "down_proj.weight":
                return rotate(weights[name].float().t()).t()
        if name == "model.embed_tokens.weight":
            return rotate(weights[name].float()).to(weights[name].dtype)
        if name == "lm_head.weight":
            return after("model.norm.weight", "model.embed_tokens.weight" if shape.tied else name)
        return torch.ones(shape.hidden)

    return read


def _check_foldable(shape: ModelShape) -> None:
    if shape.parts.post_norm:
        raise ModelError(
            f"dtype 'int8' cannot compute {shape.family} models: norms follow their attention and MLP, past which the "
            f"rotation of int8 weights cannot be folded; use bfloat16"
        )


def _place(name: str) -> tuple[str, str]:
    """The norm before the attention or MLP that a weight is of, and its name there, which is empty elsewhere."""
    part, norm = ("self_attn.", "input_layernorm") if "self_attn." in name else ("mlp.", "post_attention_layernorm")
    layer, _, rest = name.partition(part)
    return f"{layer}{norm}.weight", rest


def _by_head(x: torch.Tensor, shape: ModelShape) -> torch.Tensor:
    """The last axis, [heads * head_size], rotated within each head."""
    block = hadamard_block(shape.head_size)
    return hadamard(x, block) / math.sqrt(block)


def _signs(width: int) -> torch.Tensor:
    """Float32 [width] of +-1 that no Hadamard row resembles; fixed for ever, as weights on disk may depend on them."""
    bits = hashlib.shake_256(b"ghostkv signs").digest(width)
    return torch.tensor([1.0 if bit & 1 else -1.0 for bit in bits])
