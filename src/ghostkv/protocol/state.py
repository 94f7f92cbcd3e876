"""Chooses what a segment's prompt shows of a session's memory: the state block and the recalled sentences.

Both are sentences as they were written, with superseded values replaced by the ones that hold now. What states an exact
fact is the state block's, where there is room, and may use recall's; what states none is recall's. The choice follows
what the next step is likely to need: the words of the question, or of the open answer's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ghostkv.protocol.facts import Kind, Position, Sentence
from ghostkv.protocol.ledger import Ledger
from ghostkv.protocol.recall import TAIL_WEIGHT, Query, search
from ghostkv.protocol.sentence_index import UNIT
from ghostkv.protocol.transition import Memory

BIT = TAIL_WEIGHT * UNIT * 16  # what a score gains from a word of the tail, for each bit of its rarity

_LOOKED_AT = 48  # best sentences that are considered
MOST_LINES = 8
# Both by measurement: docs/experiments.md, "Placement and form" and "Which lines".
CLOSE = 80  # percent of the best line's score that a line needs: a weaker one about something alike misleads
TELLING = 20  # bits of the words that a line shares with the open answer, at least: below, a longer tail is worth more
_NEXT = 200  # last characters of the open answer that tell what comes next


@dataclass(frozen=True, slots=True)
class Need:
    """What the next segment is likely to want to know."""

    query: Query
    least: int  # score that a line needs
    asked: bool  # whether it is the question's need

    @classmethod
    def to_answer(cls, question: str) -> Need:
        """For a question whose answer has not begun."""
        return cls(Query.of(question), 1, asked=True)

    @classmethod
    def to_go_on(cls, question: str, tail: str) -> Need:
        """For an answer that goes on after `tail`; by now the question weighs no more than the answer's own words."""
        return cls(Query.of("", f"{question} {tail[-_NEXT:]}"), TELLING * BIT, asked=False)


@dataclass(frozen=True, slots=True)
class Room:
    """Prompt tokens for lines."""

    state: int
    recall: int

    @classmethod
    def of(cls, tokens: int, state: int, recall: int) -> Room:
        """`tokens` shared out as `state` to `recall`."""
        if state + recall == 0:
            return cls(0, 0)
        mine = tokens * state // (state + recall)
        return cls(mine, tokens - mine)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a prompt."""

    text: str
    position: Position  # of the sentence that it shows
    tokens: int
    fact: bool  # of the state block, not of recall
    asked: bool = False  # the question wants it, so that it stays until its answer ends


@dataclass(frozen=True, slots=True)
class Block:
    """The lines of a prompt, the most useful one last."""

    lines: tuple[Line, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """What stands in the prompt."""
        return tuple(line.text for line in self.lines)

    @property
    def tokens(self) -> int:
        """Prompt tokens of all lines."""
        return sum(line.tokens for line in self.lines)

    def shorter(self) -> Iterator[Block]:
        """This block and each with one line less at its beginning, down to none."""
        for first in range(len(self.lines) + 1):
            yield Block(self.lines[first:])

    @property
    def recalled_tokens(self) -> int:
        """Prompt tokens of the lines that recall brought."""
        return sum(line.tokens for line in self.lines if not line.fact)


NO_BLOCK = Block()


def choose_lines(
    memory: Memory,
    need: Need,
    shown: Callable[[Sentence], bool],
    room: Room,
    cost: Callable[[str], int],
    before: Block,
) -> Block:
    """The lines for a prompt that shows the sentences of which `shown` is true.

    `cost` counts a line's tokens. What stood in the prompt before stays in its place while it is useful and true, and
    new lines follow, so that the prompt's beginning is found in the prefix cache; else a new epoch begins.
    """
    wanted = _wanted(memory, need, shown, room, cost)
    ledger = memory.payload.payload.ledger
    useful = {line.position for line in wanted}
    kept = tuple(line for line in before.lines if (line.asked or line.position in useful) and _current(ledger, line))
    held, said = {line.position for line in kept}, {line.text for line in kept}
    lines = (*kept, *(line for line in wanted if line.position not in held and line.text not in said))
    while sum(line.tokens for line in lines) > room.state + room.recall:
        lines = lines[1:]
    return Block(lines)


def _wanted(
    memory: Memory, need: Need, shown: Callable[[Sentence], bool], room: Room, cost: Callable[[str], int]
) -> tuple[Line, ...]:
    """The best lines that fit, the best last."""
    ledger = memory.payload.payload.ledger
    kinds: dict[Position, list[Kind]] = {}
    for fact in ledger.facts:
        kinds.setdefault(fact.sentence.position, []).append(fact.kind)

    def kinds_of(sentence: Sentence) -> Sequence[Kind]:
        return kinds.get(sentence.position, ())

    state, recall = room.state, room.recall
    chosen: list[Line] = []
    hits = search(memory.index, need.query, _LOOKED_AT, skip=shown, kinds=kinds_of)
    for hit in hits:
        if hit.score < max(need.least, hits[0].score * CLOSE // 100):
            break
        sentence = _stating(ledger, hit.sentence, shown)
        text = ledger.current(sentence)
        if text is None or any(text == line.text for line in chosen):
            continue
        line = Line(text, sentence.position, cost(text), fact=sentence.position in kinds, asked=need.asked)
        if line.fact and line.tokens <= state:
            state -= line.tokens
        elif line.tokens <= recall:
            recall -= line.tokens
        else:
            continue
        chosen.append(line)
        if len(chosen) == MOST_LINES:
            break
    return tuple(reversed(chosen))


def _stating(ledger: Ledger, sentence: Sentence, shown: Callable[[Sentence], bool]) -> Sentence:
    """Of a sentence that announces a change, the older one that, rewritten, says the same more fully.

    One rewritten sentence takes the room of one and cannot be read as two values.
    """
    older = ledger.announced(sentence)
    return older[-1] if older and not shown(older[-1]) else sentence


def _current(ledger: Ledger, line: Line) -> bool:
    """Whether a line still says what holds."""
    stating = (fact.sentence for fact in ledger.facts if fact.sentence.position == line.position)
    return all(ledger.current(sentence) == line.text for sentence in stating)
