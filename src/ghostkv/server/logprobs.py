"""Log-probabilities as the two endpoints write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ghostkv.request import Token
from ghostkv.text.detokenizer import Detokenizer
from ghostkv.text.tokenizer import Tokenizer

_LEAST = -9999.0  # stands for minus infinity, which JSON cannot write


def shown(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token as text; incomplete characters in OpenAI's notation, e.g. `bytes:\xf0\x9f`."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode() if data else tokenizer.token_text(token_id)
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""

    def entry(token_id: int, logprob: float | None) -> dict[str, Any]:
        data = list(tokenizer.token_bytes(token_id))
        return {"token": shown(tokenizer, token_id), "logprob": _finite(logprob), "bytes": data}

    content = [
        {**entry(token.id, token.logprob), "top_logprobs": [entry(*best) for best in token.top]} for token in tokens
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`choices[].logprobs` of a completion, piece by piece: offsets count characters from the start of its text."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool = False) -> None:
        """`as_ids`: a token is shown by its id, which no two share, and not by its text."""
        self._shown: Callable[[int], str] = "token_id:{}".format if as_ids else partial(shown, tokenizer)
        self._detokenizer = Detokenizer(tokenizer)
        self._undecoded = b""
        self._offset = 0

    def begin(self, offset: int) -> None:
        """The answer begins, at character `offset` of the text: what the prompt's last character lacks never comes."""
        self._undecoded, self._offset = b"", offset

    def of(self, tokens: Sequence[Token]) -> dict[str, Any]:
        """The next tokens. `top_logprobs` holds the token itself besides the best ones.

        A prompt's first token, which follows nothing, has null in both places.
        """
        offsets: list[int] = []
        best: list[dict[str, float | None] | None] = []
        for token in tokens:
            offsets.append(self._offset)
            text, self._undecoded = self._detokenizer.feed(self._undecoded, token.id)
            self._offset += len(text)
            entries = dict([*token.top, (token.id, token.logprob)])
            named = {self._shown(token_id): _finite(value) for token_id, value in entries.items()}
            best.append(None if token.logprob is None else named)
        return {
            "tokens": [self._shown(token.id) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": best,
            "text_offset": offsets,
        }


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else min(0.0, max(_LEAST, logprob))
