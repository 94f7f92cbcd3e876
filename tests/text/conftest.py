"""Tokenizers that the text tests share: the real one, and two trained on a paragraph."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
import tokenizers
from gguf import GGUFReader
from tokenizers import decoders, models, pre_tokenizers, trainers

from ghostkv.text.gguf_tokenizer import tokenizer_from_gguf
from ghostkv.text.tokenizer import Tokenizer

CONTROL = (
    "<unk>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
)
CORPUS = [
    "Commander Imani Okafor walked to the airlock of Aster-7 on Sol 42. The pressure was 68.2 kPa, the air 21.4 C.",
    "You are a helpful assistant. The user asked: what is the answer, and where is the system? The end of the turn.",
    "def f(x):\n    return {'a': [x, 1], 'b': x <= 2 or x >= 3}\n\nfor i in range(10):\n    print(i, f(i) | 4)\n",
    "Whether the user or the assistant ends the text, the headers start and the instructions end <the> |end| [inst].",
]


PARTS = (
    *("Commander Okafor", "the pressure", "don't", "I'll", "über", "naïve", "Ελλάδα", "данные", "शब्द", "עברית"),
    *("0", "7", "42", "21.4", "1,000,000", "2026-11-29", "½", "Ⅷ", "٣"),
    *(" ", "  ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "    ", " \n "),
    *("漢字", "日本語です。", "한국어", "你好，世界！", "🙂", "👩‍👩‍👧‍👦", "🇳🇱", "e\u0301", "\u200b", "\x00", "\ufffd"),
    *(
        "def f(x):\n    return x**2",
        "a[i] += 0x1F;",
        "</div>",
        "{'k': [1, 2]}",
        "//",
        "<|x|>",
        "$\\frac{a}{b}$",
        "`c`",
        '"q"',
    ),
)


@pytest.fixture(scope="session")
def texts() -> list[str]:
    """2,000 strings of words, numbers, space, scripts, emoji and code."""
    rng = random.Random(20261129)
    return ["".join(rng.choices(PARTS, k=rng.randint(1, 12))) for _ in range(2000)]


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> Mapping[str, object]:
    """The tokenizer's part of the real GGUF's metadata."""
    return {
        key: field.contents() for key, field in GGUFReader(smollm2_path).fields.items() if key.startswith("tokenizer.")
    }


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: Mapping[str, object]) -> Tokenizer:
    return tokenizer_from_gguf(smollm2_metadata, "smollm2.gguf")


@pytest.fixture(scope="session")
def byte_level() -> tokenizers.Tokenizer:
    """Byte-level BPE with a few hundred merges and the control tokens of every template family."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        show_progress=False,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train_from_iterator(CORPUS * 3, trainer)
    return inner


@pytest.fixture(scope="session", params=["always", "first"])
def sentencepiece(request: pytest.FixtureRequest) -> tokenizers.Tokenizer:
    """Llama-2-like BPE with byte fallback: a space goes before every run of text, or only before the first."""
    inner = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    scheme = "always" if request.param == "always" else "first"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, special_tokens=[*CONTROL, *fallback])
    inner.train_from_iterator([word for text in CORPUS * 3 for word in text.split(" ")], trainer)
    return _without_special(inner, fallback)


def _without_special(inner: tokenizers.Tokenizer, fallback: list[str]) -> tokenizers.Tokenizer:
    """The byte tokens are ordinary vocabulary: the trainer could only reserve them as special ones."""
    description = json.loads(inner.to_str())
    description["added_tokens"] = [t for t in description["added_tokens"] if t["content"] not in fallback]
    return tokenizers.Tokenizer.from_str(json.dumps(description))
