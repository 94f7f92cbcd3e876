"""The density of a segment (CDM): how much exact content it carries, from 0 to 1. Pure arithmetic on its text.

Exact content is what a reader could not guess: items such as names, numbers and codes, text that does not repeat what
came before, and words that surprised the model. Each term is scaled so that 0.5 is what ordinary prose shows and the
estimate is their weighted mean, so it is comparable between sessions and needs no history.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

# (value of ordinary prose, value of a dense record) of each term, and its weight. The values are medians over 218
# segments of 640 characters each: a travel journal of 1839, and a bank's product and procedure documents.
_ITEMS = (2.8, 9.4, 0.6)  # exact items per 100 words
_NOVELTY = (0.53, 0.60, 0.2)  # compressed bytes per byte, given the text before; the journal's ninth decile is 0.57
_SURPRISE = (4.5, 7.0, 0.2)  # mean bits per token
_BEFORE = 2048  # bytes of earlier text that repetition is looked for in


def estimate_density(text: str, items: int, *, before: str = "", logprobs: Sequence[float] = ()) -> float:
    """Density of a segment: 0.5 for ordinary prose, near 1 for a record of facts, near 0 for repetition.

    `items` is the number of exact items in `text`, `before` what precedes it, `logprobs` the natural
    log-probabilities of its tokens where they are at hand; without them the other terms count for all.
    """
    words = len(text.split())
    if not words:
        return 0.0
    terms = [(100 * items / words, _ITEMS), (_incompressible(text, before), _NOVELTY)]
    if logprobs:
        terms.append((-sum(logprobs) / len(logprobs) / 0.6931471805599453, _SURPRISE))
    total = sum(weight for _, (_, _, weight) in terms)
    return sum(weight * _scaled(value, usual, dense) for value, (usual, dense, weight) in terms) / total


def _scaled(value: float, usual: float, dense: float) -> float:
    """0 at 0, 0.5 at `usual`, 1 at `dense` and above; linear between."""
    if value <= usual:
        return 0.5 * max(value, 0.0) / usual
    return min(1.0, 0.5 + 0.5 * (value - usual) / (dense - usual))


def _incompressible(text: str, before: str) -> float:
    """Bytes that the text adds to a compressed stream of what precedes it, per byte (normalised compression)."""
    data = text.encode("utf-8", errors="surrogatepass")
    known = before.encode("utf-8", errors="surrogatepass")[-_BEFORE:]
    if not known:
        return len(zlib.compress(data, 6)) / len(data)
    compressor = zlib.compressobj(6, zdict=known)
    return len(compressor.compress(data) + compressor.flush()) / len(data)
