"""Small random Llama checkpoints on disk, in both formats that ghostkv loads.

The scale of the weights is chosen so that logits spread over a few nats and attention is sharp: greedy ids then do not
fall into a loop (25 to 35 different ones of 48) and change when a layer, a rotary pairing or a norm is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_MERGES = [("Ġ", "t"), ("h", "e"), ("Ġ", "a"), ("i", "n"), ("Ġt", "he"), ("r", "e"), ("o", "n"), ("e", "r")]
VOCAB = 256 + len(_MERGES) + 3  # bytes, merges, control tokens


def small_tokenizer() -> Tokenizer:
    """A byte-level BPE of VOCAB ids with single digits: the pre-tokeniser that GGUF names `smollm`."""
    tokens = [END_OF_TEXT, IM_START, IM_END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokens += ["".join(pair) for pair in _MERGES]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=_MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (END_OF_TEXT, IM_START, IM_END)])
    return tokenizer


def write_hf_checkpoint(
    directory: Path,
    *,
    layers: int = 2,
    hidden: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 64,
    intermediate: int = 224,
    vocab: int = VOCAB,
    tied: bool = True,
    rope_theta: float = 10000.0,
    context: int = 512,
    seed: int = 0,
    dtype: str = "float32",
    shards: int = 1,
) -> Path:
    """Write a random Llama that `transformers.AutoModelForCausalLM.from_pretrained` loads; returns `directory`.

    `head_size` need not be hidden / heads, but transformers wants hidden to be a multiple of heads.
    `vocab` may exceed VOCAB: the further ids have no text.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_size,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": rope_theta,
        "max_position_embeddings": context,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": dtype,
    }
    _write_json(directory / "config.json", config)
    write_tokenizer(directory)
    tensors = random_tensors(config, seed)
    _save_shards(directory, {name: t.to(getattr(torch, dtype)) for name, t in tensors.items()}, shards)
    return directory


def write_tokenizer(directory: Path) -> None:
    """Tokenizer, chat template and end ids of a checkpoint, as files of its directory."""
    _write_json(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 0]})
    small_tokenizer().save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": IM_START,
            "eos_token": IM_END,
            "add_bos_token": False,
            "chat_template": CHATML,
            "clean_up_tokenization_spaces": False,
        },
    )


def random_tensors(config: Mapping[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Float32 weights under their Hugging Face names, for a config.json as written above."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator).mul(gain / columns**0.5)

    def norm() -> torch.Tensor:
        return 1 + 0.1 * torch.randn(hidden, generator=generator)

    tensors = {"model.embed_tokens.weight": matrix(vocab, hidden, 3.0)}
    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        tensors |= {
            base + "input_layernorm.weight": norm(),
            base + "self_attn.q_proj.weight": matrix(queries, hidden, 4.0),
            base + "self_attn.k_proj.weight": matrix(keys, hidden),
            base + "self_attn.v_proj.weight": matrix(keys, hidden, 3.0),
            base + "self_attn.o_proj.weight": matrix(hidden, queries),
            base + "post_attention_layernorm.weight": norm(),
            base + "mlp.gate_proj.weight": matrix(inner, hidden),
            base + "mlp.up_proj.weight": matrix(inner, hidden),
            base + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    tensors["model.norm.weight"] = norm()
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(vocab, hidden, 3.0)
    return tensors


def write_gguf_checkpoint(path: Path, hf_directory: Path, quantisation: str = "F32") -> Path:
    """Write the checkpoint in `hf_directory` as one GGUF file; returns `path`.

    Matrices take `quantisation` (a name in gguf.GGMLQuantizationType), norms stay F32, and query and key rows are
    permuted for interleaved rotary, as llama.cpp's converter does.
    """
    config = json.loads((hf_directory / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    _write_shape(writer, config)
    write_gguf_tokenizer(writer, Tokenizer.from_file(str(hf_directory / "tokenizer.json")), config)
    kind = gguf.GGMLQuantizationType[quantisation]
    for file in sorted(hf_directory.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            data = tensor.float().numpy()
            if name.endswith("q_proj.weight"):
                data = permute(data, heads)
            elif name.endswith("k_proj.weight"):
                data = permute(data, kv_heads)
            used = kind if data.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(data), used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permute(rows: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """[heads * head_size, columns], half-split to interleaved rotary: in a head, row 2i+j is row i + j * size / 2."""
    out = np.empty_like(rows)
    size = rows.shape[0] // heads
    for head in range(heads):
        for i in range(size // 2):
            for j in (0, 1):
                out[head * size + 2 * i + j] = rows[head * size + i + j * (size // 2)]
    return out


_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face Llama tensor."""
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, inner = name.split(".", 3)
    return f"blk.{layer}.{_INNER[inner.removesuffix('.weight')]}.weight"


def _write_shape(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def write_gguf_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer, config: Mapping[str, Any]) -> None:
    """The tokenizer's keys of GGUF metadata."""
    model = json.loads(tokenizer.to_str())
    special = {token["id"]: token["content"] for token in model["added_tokens"]}
    texts = {i: text for text, i in model["model"]["vocab"].items()} | special
    tokens, kinds = [], []
    for i in range(config["vocab_size"]):
        tokens.append(texts.get(i, f"[PAD{i}]"))
        kinds.append(
            gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL if i in texts else gguf.TokenType.UNUSED
        )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["model"]["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def _save_shards(directory: Path, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
