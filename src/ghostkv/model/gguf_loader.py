"""Loads a GGUF file: names, rotary row order and quantised types become what the runner computes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ghostkv.errors import ModelError
from ghostkv.model.digest import content_digest
from ghostkv.model.families import FAMILIES
from ghostkv.model.gguf_file import GgufFile, read_gguf
from ghostkv.model.gguf_shape import shape_from_gguf
from ghostkv.model.shape import ModelShape
from ghostkv.model.tensors import check_finite, check_layout
from ghostkv.model.weight_cache import cached_weights
from ghostkv.text.gguf_tokenizer import tokenizer_from_gguf
from ghostkv.text.tokenizer import Tokenizer

_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_WITH_POST_NORM = {  # these families have other names in Hugging Face checkpoints, not in GGUF
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
}
_ROPE_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """A Checkpoint read from a GGUF file."""

    path: Path
    name: str
    shape: ModelShape
    digest: str
    tokenizer: Tokenizer
    template: str | None
    file: GgufFile

    def weights(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """See Checkpoint.weights. Mapped from the cache of converted weights, which a dtype's first call fills."""
        layout = {name: (dtype, size) for name, size in self.shape.tensor_shapes().items()}
        return cached_weights(self.digest, str(dtype).removeprefix("torch."), layout, lambda: self._convert(dtype))

    def _convert(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        weights = {}
        interleaved, offset = FAMILIES[self.shape.family].interleaved, self.shape.parts.norm_offset
        for name in self.shape.tensor_shapes():
            source = _gguf_name(name, self.shape)
            values = self.file.read(self.file.tensors[source])
            if interleaved and name.endswith("q_proj.weight"):
                values = _half_split(values, self.shape.heads)
            elif interleaved and name.endswith("k_proj.weight"):
                values = _half_split(values, self.shape.kv_heads)
            elif offset and name.endswith("norm.weight"):  # which llama.cpp's converter has added
                values = values - np.float32(offset)
            weights[name] = torch.from_numpy(np.ascontiguousarray(values)).to(dtype)
            check_finite(self.path, source, weights[name])
        return weights


def open_gguf(path: Path) -> GgufCheckpoint:
    """Read and check everything but the weights' values."""
    file = read_gguf(path)
    divisors = file.tensors.get(_ROPE_DIVISORS)
    values = None if divisors is None else tuple(map(float, file.read(divisors)))
    shape = shape_from_gguf(file.metadata, path, tied="output.weight" not in file.tensors, rope_divisors=values)
    expected = {_gguf_name(name, shape): size for name, size in shape.tensor_shapes().items()}
    if divisors is not None:
        expected[_ROPE_DIVISORS] = (shape.head_size // 2,)
    check_layout(expected, {name: tensor.shape for name, tensor in file.tensors.items()}, lambda _: path)
    tokenizer = tokenizer_from_gguf(file.metadata, str(path))
    if tokenizer.vocab_size > shape.vocab:
        raise ModelError(f"{path}: {tokenizer.vocab_size} token ids, but the model embeds {shape.vocab}")
    return GgufCheckpoint(
        path=path,
        name=path.stem,
        shape=shape,
        digest=content_digest([path]),
        tokenizer=tokenizer,
        template=_template(file.metadata, path),
        file=replace(file, metadata={}),  # which holds every token as a Python object
    )


def _half_split(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's row order: within a head, row 2i + j goes back to row i + j * head_size / 2.

    llama.cpp rotates neighbouring pairs of rows, the runner pairs a row with the one half a head further on.
    """
    size = rows.shape[0] // heads
    return rows.reshape(heads, size // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _gguf_name(name: str, shape: ModelShape) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, inner = name.split(".", 3)
    names = _LAYER | (_WITH_POST_NORM if shape.parts.post_norm else {})
    return f"blk.{layer}.{names[inner]}"


def _template(metadata: Mapping[str, object], path: Path) -> str | None:
    template = metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise ModelError(f"{path}: tokenizer.chat_template is {type(template).__name__}, not text")
    return template
