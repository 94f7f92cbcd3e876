"""What a decoder-only transformer consists of: sizes, the parts of its layers, and the weights that follow from them.

Not how metadata says so (`hf_shape`, `gguf_shape`, `families`), not what the kernels can compute (`cpu_ops`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ghostkv.model.rope import Rope


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What the attention of one layer sees, and how it knows where."""

    rope: Rope | None  # None: positions do not enter
    window: int | None = None  # tokens up to its own that a query sees; None for all


@dataclass(frozen=True, slots=True)
class Parts:
    """What the layers of a family have beside those of Llama."""

    qkv_bias: bool = False  # biases of the projections to queries, keys and values
    head_norm: bool = False  # RMSNorm of every query and key head before it is rotated
    post_norm: bool = False  # RMSNorm of what attention and MLP give, before it is added to the residual stream
    norm_offset: float = 0.0  # added to the stored weights of norms
    embedding_by_width: bool = False  # embeddings are multiplied by sqrt(hidden)


LLAMA = Parts()


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes and parts of a decoder-only transformer."""

    family: str  # of `families`
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    norm_eps: float
    context: int  # positions the model was trained for
    tied: bool  # the output head is the embedding
    attention: tuple[LayerShape, ...]  # of each layer
    parts: Parts = LLAMA
    activation: str = "silu"  # of the gate: a name of `activations`
    query_scale: float | None = None  # of scores, before softmax; None for head_size**-0.5

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by before softmax."""
        return self.head_size**-0.5 if self.query_scale is None else self.query_scale

    @property
    def shortest_window(self) -> int | None:
        """Tokens that a query sees in the layer that sees fewest; None where all layers see all."""
        windows = [layer.window for layer in self.attention if layer.window is not None]
        return min([window for window in windows if window < self.context], default=None)

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Bytes of keys and values of one token: 2 * layers * kv_heads * head_size * dtype_bytes (TGP F1)."""
        return 2 * self.layers * self.kv_heads * self.head_size * dtype_bytes

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight under its Hugging Face name; matrices are [out, in]."""
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.hidden)}
        of_layer = self._layer_shapes()
        for layer in range(self.layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        return shapes

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        shapes: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (self.hidden,),
            "self_attn.q_proj.weight": (queries, self.hidden),
            "self_attn.k_proj.weight": (keys, self.hidden),
            "self_attn.v_proj.weight": (keys, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, queries),
            "post_attention_layernorm.weight": (self.hidden,),
            "mlp.gate_proj.weight": (self.intermediate, self.hidden),
            "mlp.up_proj.weight": (self.intermediate, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.intermediate),
        }
        if self.parts.qkv_bias:
            shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in zip("qkv", (queries, keys, keys))}
        if self.parts.head_norm:
            shapes |= {f"self_attn.{name}_norm.weight": (self.head_size,) for name in "qk"}
        if self.parts.post_norm:
            shapes |= {f"{where}_feedforward_layernorm.weight": (self.hidden,) for where in ("pre", "post")}
        return shapes

    @property
    def mlp_norm(self) -> str:
        """Name of the norm before the MLP; where norms follow as well, the other name is that of attention's."""
        return "pre_feedforward_layernorm" if self.parts.post_norm else "post_attention_layernorm"

    @property
    def parameters(self) -> int:
        """Number of weights; a tied head counts once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())
