"""From logits to tokens. Each row is drawn from its own logits and its own `Draw`, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ghostkv.errors import EngineFault
from ghostkv.model import vocabulary
from ghostkv.request import Token
from ghostkv.step import Draw

Scores = npt.NDArray[np.float32]


class Sampler:
    """Draws one token per row. Call under `threads.compute`."""

    def __init__(self, vocab: int, threads: int) -> None:
        self._vocab = vocab
        self._threads = threads
        self._scores: Scores = np.zeros(vocab, dtype=np.float32)
        self._weights: Scores = np.zeros(vocab, dtype=np.float32)

    def sample(self, logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[Token, ...]:
        """Tokens for the first len(draws) rows of `logits` [rows, vocabulary], bfloat16 or float32."""
        array = _flat(logits)
        plain = [i for i, draw in enumerate(draws) if _is_plain_greedy(draw)]
        best = np.empty(len(plain), dtype=np.int64)
        rows = np.array(plain, dtype=np.int64)
        vocabulary.argmax_rows(array, rows, self._vocab, best, self._threads)
        tokens: list[Token | None] = [None] * len(draws)
        for row, index in zip(plain, best.tolist()):
            tokens[row] = Token(_number(index))
        return tuple(
            token or self._draw(array, row * self._vocab, draw) for row, (token, draw) in enumerate(zip(tokens, draws))
        )

    def score(self, logits: torch.Tensor, targets: Sequence[tuple[int, int]]) -> list[Token]:
        """For row i, token id targets[i][0] with its log-probability and the targets[i][1] best ones."""
        array, scores, found = _flat(logits), self._scores, []
        for row, (target, best) in enumerate(targets):
            vocabulary.widen(array, row * self._vocab, self._vocab, scores)
            total = vocabulary.log_sum_exp(scores, self._vocab)
            found.append(Token(target, float(scores[target]) - total, _best(scores, best, total)))
        return found

    def _draw(self, logits: npt.NDArray[Any], at: int, draw: Draw) -> Token:
        sampling = draw.sampling
        scores = self._scores
        vocabulary.widen(logits, at, self._vocab, scores)
        total = vocabulary.log_sum_exp(scores, self._vocab) if sampling.logprobs is not None else 0.0
        top = _best(scores, sampling.logprobs or 0, total)
        adjust(scores, draw)
        chosen = np.empty(1, dtype=np.int64)
        if sampling.temperature == 0.0:
            vocabulary.argmax_rows(scores, np.zeros(1, dtype=np.int64), self._vocab, chosen, self._threads)
        else:
            filters = sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p
            chosen[0] = vocabulary.draw(scores, self._vocab, *filters, draw.uniform, self._weights)
        token = _number(int(chosen[0]))
        if sampling.logprobs is None:
            return Token(token)
        vocabulary.widen(logits, at + token, 1, scores)  # its own logit again: `adjust` may have changed it
        return Token(token, float(scores[0]) - total, top)


def adjust(scores: Scores, draw: Draw) -> None:
    """Apply penalties, logit bias, masks and the grammar's to `scores` [vocabulary], in place.

    Repetition penalty (Keskar 2019, CTRL): positive logits of seen ids are divided, negative ones multiplied. Presence
    and frequency penalties (OpenAI): logit -= presence + frequency * count, over the output alone.
    """
    sampling = draw.sampling
    counts = draw.counts or {}
    if sampling.repetition_penalty != 1.0:
        seen = np.fromiter(draw.client_ids | counts.keys(), dtype=np.int64)
        x = scores[seen]
        penalty = np.float32(sampling.repetition_penalty)
        scores[seen] = np.where(x > 0, x / penalty, x * penalty)
    if counts and (sampling.presence_penalty or sampling.frequency_penalty):
        ids = np.fromiter(counts.keys(), dtype=np.int64)
        occurrences = np.fromiter(counts.values(), dtype=np.float32)
        scores[ids] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * occurrences
    for token, bias in sampling.logit_bias:
        scores[token] += np.float32(bias)
    if draw.masked:
        scores[list(draw.masked)] = -np.inf
    if draw.allowed is not None:  # last, so that nothing brings back what it leaves out
        allowed = np.unpackbits(draw.allowed.view(np.uint8), bitorder="little")[: len(scores)]
        np.putmask(scores[: len(allowed)], allowed == 0, -np.inf)
        scores[len(allowed) :] = -np.inf  # rows of padding, which are no token's


def _flat(logits: torch.Tensor) -> npt.NDArray[Any]:
    flat = logits.cpu().reshape(-1)
    return (flat.view(torch.uint16) if flat.dtype == torch.bfloat16 else flat).numpy()


def _is_plain_greedy(draw: Draw) -> bool:
    sampling = draw.sampling
    neutral = sampling.logprobs is None and not sampling.logit_bias and not draw.masked and not sampling.penalised
    return sampling.temperature == 0.0 and neutral and draw.allowed is None


def _best(scores: Scores, count: int, total: float) -> tuple[tuple[int, float], ...]:
    """The `count` largest as (id, log-probability), lowest id first among equals."""
    if count == 0:
        return ()
    if count == 1:
        most = int(np.argmax(scores))
        return ((most, float(scores[most]) - total),)
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    candidates = np.flatnonzero(scores >= least)
    order = candidates[np.lexsort((candidates, -scores[candidates]))][:count]
    return tuple((int(i), float(scores[i]) - total) for i in order)


def _number(index: int) -> int:
    if index < 0:
        raise EngineFault("the model's logits hold no number: a weight or an activation overflowed")
    return index
