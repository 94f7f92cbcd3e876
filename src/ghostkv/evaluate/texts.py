"""What the perplexity test reads: passages of a prose text, and of generated documents whose facts recur.

A passage is read in one of two forms. Raw: its first ids are the prompt of a completion, and the rest is the answer.
Chat: a request to write, under the chat template, and the whole passage is the answer. All arms read the same form.
Under the template, text that starts in mid-sentence costs more than in a completion, which says something about the
template and nothing about what was carried; so raw is the default.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice

from ghostkv.errors import ConfigError
from ghostkv.evaluate.invention import prose
from ghostkv.evaluate.lab import Asked, Lab, RawPrompt
from ghostkv.evaluate.recurring import Recurring, recurring
from ghostkv.request import Message

FORMS = RAW, CHAT = ("raw", "chat")
TEXTS = PROSE, RECURRING = ("prose", "recurring")

ASK = (Message("user", "Write a long text. Go on until you are told to stop."),)
OPENING = 16  # ids of a passage that are its prompt in the form RAW

_WORDS = range(5, 41)  # of a sentence between facts: no headings, no blocks of code
_STRIDE = 97  # sentences from the start of one document's filler to the next


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text, read as if it had been generated."""

    asked: Asked  # what every segment's prompt begins with
    ids: tuple[int, ...]  # the forced answer
    text: str  # which of TEXTS it is from
    repeated: frozenset[int] = frozenset()  # indices of the ids that say a fact again


def passage(lab: Lab, ids: Sequence[int], form: str, text: str = PROSE) -> Passage:
    """`ids` in one of FORMS. A raw prompt begins as the model's prompts do."""
    if form == CHAT:
        return Passage(ASK, tuple(ids), text)
    return Passage(RawPrompt((*lab.worker.tokenizer.prefix, *ids[:OPENING])), tuple(ids[OPENING:]), text)


def head_tokens(lab: Lab, form: str) -> int:
    """Prompt tokens of a passage."""
    return len(lab.render(passage(lab, (0,) * OPENING, form).asked))


def from_prose(lab: Lab, text: str, form: str, count: int, length: int) -> list[Passage]:
    """`count` passages with answers of `length` tokens, spread over `text`. Raises ConfigError for a short text."""
    return [passage(lab, ids, form) for ids in spread(lab.encode(text), count, _whole(form, length))]


def from_recurring(lab: Lab, text: str, form: str, count: int, length: int) -> list[Passage]:
    """The beginnings of `count` documents whose facts recur amid sentences of `text`; answers of `length` tokens."""
    whole = _whole(form, length)
    found = []
    for seed in range(count):
        filler = islice(prose(text, _WORDS), _STRIDE * seed, None)
        made = recurring(seed, whole, lab.count, filler)
        ids = lab.encode(made.text)[:whole]
        read = passage(lab, ids, form, RECURRING)
        first = len(ids) - len(read.ids)
        found.append(replace(read, repeated=frozenset(at - first for at in _repeated(lab, made, ids) if at >= first)))
    return found


def spread(ids: Sequence[int], count: int, length: int) -> list[tuple[int, ...]]:
    """At most `count` pieces of `length` ids that do not overlap. Raises ConfigError where there is not even one."""
    if len(ids) < length:
        raise ConfigError(f"the text has {len(ids)} tokens, but a passage needs {length}")
    count = min(count, len(ids) // length)
    step = (len(ids) - length) / max(1, count - 1)
    starts = [round(step * i) for i in range(count)]
    return [tuple(ids[start : start + length]) for start in starts]


def _repeated(lab: Lab, made: Recurring, ids: Sequence[int]) -> Iterator[int]:
    """Indices of the ids that begin in a sentence that says a fact again, or in the white space before it."""
    again = {repetition.index for repetition in made.repetitions}
    whole, position = made.text.encode(), 0
    spans = []
    for index, sentence in enumerate(made.sentences):
        end = whole.index(sentence.encode(), position) + len(sentence.encode())
        if index in again:
            spans.append((position, end))
        position = end
    starts = [0, *accumulate(len(lab.worker.context.token_bytes(token_id)) for token_id in ids)]
    for begin, end in spans:
        yield from range(bisect_left(starts, begin), min(bisect_left(starts, end), len(ids)))


def _whole(form: str, length: int) -> int:
    return length if form == CHAT else OPENING + length
