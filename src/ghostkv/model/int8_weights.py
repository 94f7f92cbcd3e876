"""All weights of a checkpoint as int8 models read them: rotated, fused and in digits, in one flat mapping.

Making it takes some ten seconds, so it is kept on disk (`weight_cache`). What the digits mean is in `int8.py`, how a
product reads them in `gemm.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ghostkv.model import int8, int8_kernels, machine
from ghostkv.model.activations import ACTIVATIONS
from ghostkv.model.checkpoint import Checkpoint
from ghostkv.model.gemm import Linear, lay_out_int8
from ghostkv.model.shape import ModelShape
from ghostkv.model.weight_cache import Layout, cached_weights

_FUSED = (
    ("self_attn", ("q_proj", "k_proj", "v_proj")),
    ("self_attn", ("o_proj",)),
    ("mlp", ("gate_proj", "up_proj")),
    ("mlp", ("down_proj",)),
)
_SOURCES = (Path(__file__), Path(int8.__file__), Path(int8_kernels.__file__))


def load_int8(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """`int8_weights` of a checkpoint, embedding in `dtype`, mapped from the cache, which the first call fills.

    A cached file belongs to one checkpoint, one build and processor (like the manifest), and to the code that makes the
    digits as it is now. Raises ModelError as `Checkpoint.weights` does.
    """
    shape = checkpoint.shape
    code = [source.read_text(encoding="utf-8") for source in _SOURCES]
    digest = machine.digest(checkpoint.digest, machine.build(), code)
    form = f"int8-{str(dtype).removeprefix('torch.')}"
    return cached_weights(
        digest, form, int8_layout(shape, dtype), lambda: int8_weights(shape, checkpoint.weights(dtype))
    )


def int8_weights(shape: ModelShape, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """From `weights` by Hugging Face name: embedding, norms, and NAME.digits and NAME.scales of each product.

    Digits are int8 [outputs, inputs], scales float32 [outputs]; second digits are further outputs. Norms are float32.
    """
    read = int8.rotated(shape, weights)
    made = {name: read(name) for name in _unquantised(shape)}
    for prefix, names in _products(shape):
        joined = torch.cat([read(f"{prefix}{name}.weight") for name in names])
        block, fine = _grain(shape, names, joined.shape[1])
        made |= _stored(product_name(prefix, names), int8.prepare_int8(joined, block, fine))
    return made


def int8_layout(shape: ModelShape, dtype: torch.dtype) -> Layout:
    """dtype and shape of every tensor of `int8_weights`, with the embedding in `dtype`."""
    shapes = shape.tensor_shapes()
    shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]  # another matrix than the embedding, once rotated
    layout = {name: (torch.float32, shapes[name]) for name in _unquantised(shape)}
    layout["model.embed_tokens.weight"] = (dtype, shapes["model.embed_tokens.weight"])
    for prefix, names in _products(shape):
        parts = [shapes[f"{prefix}{name}.weight"] for name in names]
        inputs = parts[0][1]
        outputs = sum(part[0] for part in parts) + _grain(shape, names, inputs)[1]
        name = product_name(prefix, names)
        layout[f"{name}.digits"], layout[f"{name}.scales"] = (
            (torch.int8, (outputs, inputs)),
            (torch.float32, (outputs,)),
        )
    return layout


def int8_linear(shape: ModelShape, weights: Mapping[str, torch.Tensor], prefix: str, names: Sequence[str]) -> Linear:
    """One product out of `int8_weights`, laid out, in memory of its own."""
    name = product_name(prefix, names)
    digits, scales = weights[f"{name}.digits"], weights[f"{name}.scales"].clone()
    outputs, inputs = digits.shape
    block, fine = _grain(shape, names, inputs)
    gated = ACTIVATIONS[shape.activation] if "gate_proj" in names else 0
    mapped = Linear(outputs, inputs, torch.int8, digits, scales=scales, block=block, fine=fine, gated=gated)
    laid = lay_out_int8(mapped)
    return laid if laid is not mapped else replace(mapped, data=digits.clone())


def product_name(prefix: str, names: Sequence[str]) -> str:
    """What the product over the fused matrices `names`, all under `prefix`, is called."""
    return prefix + "+".join(names)


def _stored(name: str, linear: Linear) -> dict[str, torch.Tensor]:
    return {f"{name}.digits": linear.dense()} | ({} if linear.scales is None else {f"{name}.scales": linear.scales})


def _unquantised(shape: ModelShape) -> Iterator[str]:
    """Embedding and norms."""
    for name, size in shape.tensor_shapes().items():
        if len(size) == 1 or name == "model.embed_tokens.weight":
            yield name


def _products(shape: ModelShape) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(prefix, names of the fused matrices) of every product."""
    yield "", ("lm_head",)
    for layer in range(shape.layers):
        for part, names in _FUSED:
            yield f"model.layers.{layer}.{part}.", names


def _grain(shape: ModelShape, names: Sequence[str], inputs: int) -> tuple[int, int]:
    """(Hadamard block of the inputs, outputs with a second digit): see `int8.prepare_int8`."""
    block = int8.hadamard_block(inputs) if "down_proj" in names else 1
    return block, shape.kv_heads * shape.head_size if "v_proj" in names else 0
