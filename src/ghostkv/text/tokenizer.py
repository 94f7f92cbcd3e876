"""Text to token ids and back. A thin layer over one `tokenizers.Tokenizer`.

Ordinary text can never become a control id here: `encode` writes special-token strings as the bytes they are. Only
`encode_markup`, for text that a chat template wrote, recognises them. Not here: templates, streaming, GGUF.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import tokenizers

from ghostkv.errors import InvalidRequest, ModelError

if TYPE_CHECKING:
    from ghostkv.text.grammar import Grammars

_SENTENCEPIECE = frozenset({"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"})
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards.

    Source: GPT-2's encoder (Radford et al., 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


# Latin-1 encodes a character below 256 as the byte of that number, and no other.
_TO_LATIN_1 = dict.fromkeys(range(256), "\uffff") | {ord(char): byte for char, byte in byte_alphabet().items()}


class Tokenizer:
    """Encodes and decodes for one model. Immutable; safe to use from several threads."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        eos_ids: Iterable[int] = (),
        add_bos: bool = False,
        name: str = "tokenizer",
    ) -> None:
        """Take a copy of `inner`. `name` is the file that errors name.

        `add_bos` is the model's own setting: whether its prompts start with `bos_id`. Nothing here adds it.
        Raises ModelError if `bos_id` is missing although `add_bos` is set, an id is outside the vocabulary, or the
        decoder is of a kind whose tokens have no bytes of their own.
        """
        whole = inner.to_str()
        self._markup = _copy(whole)
        self._plain = _copy(whole)
        self._plain.encode_special_tokens = True
        self._inside = self._plain
        if _settings(inner.pre_tokenizer).get("prepend_scheme") == "first":
            description = json.loads(whole)
            description["pre_tokenizer"]["prepend_scheme"] = "never"
            self._inside = _copy(json.dumps(description))
            self._inside.encode_special_tokens = True
        added = self._markup.get_added_tokens_decoder()
        vocabulary = self._markup.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        control = {token.content: token_id for token_id, token in sorted(added.items()) if token.special}
        self.control: Mapping[str, int] = MappingProxyType(control)
        self.control_ids: frozenset[int] = frozenset(self.control.values())
        self.bos_id = bos_id
        self.add_bos = add_bos
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_ids))
        for token_id in [*self.eos_ids, *([] if bos_id is None else [bos_id])]:
            if not 0 <= token_id < self.vocab_size:
                raise ModelError(f"{name}: token id {token_id} is outside the vocabulary of {self.vocab_size} tokens")
        if add_bos and bos_id is None:
            raise ModelError(f"{name}: prompts start with a BOS token, but none is named")
        to_bytes = _bytes_of(_settings(inner.decoder), name)
        table = [b""] * self.vocab_size
        for token, token_id in vocabulary.items():
            if token_id in added:
                table[token_id] = b"" if added[token_id].special else token.encode()
            else:
                table[token_id] = to_bytes(token)
        self._bytes = tuple(table)
        self.longest_token: int = max(map(len, table), default=1)  # bytes

    @classmethod
    def from_file(
        cls, path: Path, *, bos_id: int | None = None, eos_ids: Iterable[int] = (), add_bos: bool = False
    ) -> Tokenizer:
        """Read a Hugging Face tokenizer.json. Raises ModelError naming the file if it is missing or invalid."""
        if not path.is_file():
            raise ModelError(f"{path}: no such tokenizer file")
        try:
            inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelError(f"{path}: not a usable tokenizer.json: {error}") from error
        return cls(inner, bos_id=bos_id, eos_ids=eos_ids, add_bos=add_bos, name=str(path))

    @property
    def prefix(self) -> tuple[int, ...]:
        """What the model's raw prompts start with: BOS, or nothing."""
        return (self.bos_id,) if self.add_bos and self.bos_id is not None else ()

    def encode(self, text: str, *, opening: bool = True) -> list[int]:
        """Ids of ordinary text, without BOS. Special-token strings come out as the bytes they are.

        `opening` is false for text that follows other tokens: some SentencePiece-like tokenizers put a space before
        a text's first word, and there only. Raises InvalidRequest if `text` holds a lone surrogate.
        """
        ids: list[int] = _encode(self._plain if opening else self._inside, text).ids
        if self.control_ids.isdisjoint(ids):
            return ids
        # Some vocabularies reach a control token by ordinary merges; such a token is spelled in single bytes.
        return [part for token_id in ids for part in (self._spelled.get(token_id) or (token_id,))]

    def encode_markup(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) for each token of text in which special-token strings mean control ids.

        Offsets are in characters. A control token's span takes in the white space that it swallows (lstrip, rstrip).
        Raises InvalidRequest if `text` holds a lone surrogate.
        """
        encoding = _encode(self._markup, text)
        return [(token_id, start, end) for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """The concatenated bytes of `ids` as text: special tokens are skipped, invalid UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of a token; empty for special tokens and for ids that the vocabulary does not use."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def token_text(self, token_id: int) -> str:
        """A token as shown to people: a special token's own string, else its bytes with U+FFFD for incomplete ones."""
        if token_id in self.control_ids:
            return str(self._markup.id_to_token(token_id))
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def to_json(self) -> str:
        """The tokenizer as the content of a Hugging Face tokenizer.json."""
        return str(self._markup.to_str(pretty=True))

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles grammars for this vocabulary."""
        from ghostkv.text.grammar import Grammars  # brings llguidance, which most runs never need

        return Grammars(self)

    @cached_property
    def digest(self) -> str:
        """SHA-256, hexadecimal: tokenizers of one digest give equal ids, and end a generation at equal ids."""
        settings = json.dumps([self.bos_id, self.add_bos, self.eos_ids, self._markup.to_str()])
        return hashlib.sha256(settings.encode("utf-8", errors="surrogatepass")).hexdigest()

    @cached_property
    def _spelled(self) -> Mapping[int, tuple[int, ...]]:
        """Control id -> ids of its string's single bytes."""
        single: dict[bytes, int] = {}
        for token_id, piece in enumerate(self._bytes):
            if len(piece) == 1:
                single.setdefault(piece, token_id)
        spelled = {}
        for text, token_id in self.control.items():
            parts = tuple(single.get(bytes([byte]), -1) for byte in text.encode())
            if -1 in parts:
                raise ModelError(f"the vocabulary has no way to write {text!r} as ordinary bytes")
            spelled[token_id] = parts
        return spelled


def _settings(part: tokenizers.pre_tokenizers.PreTokenizer | tokenizers.decoders.Decoder | None) -> dict[str, Any]:
    """One part of a tokenizer.json; the whole, with vocabulary and merges, takes long to read."""
    return {} if part is None else dict(json.loads(part.__getstate__()))


def _copy(description: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(description)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except TypeError as error:
        raise InvalidRequest("the text holds a lone surrogate, which is not a character") from error


def _bytes_of(decoder: object, name: str) -> Callable[[str], bytes]:
    """How a vocabulary entry becomes bytes, by the decoder that tokenizer.json names."""
    kinds = _kinds(decoder)
    if kinds == ["ByteLevel"]:
        return _byte_level_bytes
    if kinds[:1] in (["Replace"], ["Metaspace"]) and _SENTENCEPIECE.issuperset(kinds):
        return _sentencepiece_bytes
    found = "+".join(kinds) or "none"
    raise ModelError(f"{name}: decoder {found} is not supported (known: ByteLevel, SentencePiece-like)")


def _kinds(decoder: object) -> list[str]:
    if not isinstance(decoder, dict) or "type" not in decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [kind for part in decoder.get("decoders", ()) for kind in _kinds(part)]
    return [str(decoder.get("type"))]


def _byte_level_bytes(token: str) -> bytes:
    try:
        return token.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:  # a character outside the alphabet: an entry put there by hand, which stands for itself
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode()
