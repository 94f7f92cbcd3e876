"""What a session has said and read: the token ids of all closed segments, and the sentences for recall. A value.

Storing it happens elsewhere, its stored form is `archive_format`, and searching it is `recall`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ghostkv.errors import InvariantViolation
from ghostkv.protocol.facts import Sentence
from ghostkv.protocol.log import Log
from ghostkv.protocol.token_log import TokenLog


@dataclass(frozen=True, slots=True)
class Archive:
    """Ids in order, where each segment ends, and sentences in the order in which they were read.

    Appending costs what is new. Two continuations of one archive do not disturb each other.
    """

    ids: TokenLog = field(default_factory=TokenLog)
    ends: Log[int] = field(default_factory=Log)  # ids[ends[i - 1]:ends[i]] is segment i
    sentences: Log[Sentence] = field(default_factory=Log)  # also of messages, whose ids are not here

    @property
    def total(self) -> int:
        """Archived tokens."""
        return len(self.ids)

    def append(self, segment: Sequence[int], sentences: Iterable[Sentence] = ()) -> Archive:
        """The archive with one more closed segment, which may be empty, and the sentences that were read with it."""
        ids = self.ids.extended(segment)
        return Archive(ids, self.ends.extended((len(ids),)), self.sentences.extended(sentences))

    def read(self, sentences: Iterable[Sentence]) -> Archive:
        """The archive with sentences that no segment generated, such as a message's."""
        return Archive(self.ids, self.ends, self.sentences.extended(sentences))

    def slice(self, start: int, stop: int) -> tuple[int, ...]:
        """ids[start:stop] for 0 <= start <= stop <= total. Raises InvariantViolation outside that."""
        if not 0 <= start <= stop <= self.total:
            raise InvariantViolation(f"tokens {start}:{stop} are not in an archive of {self.total}")
        return self.ids[start:stop]
