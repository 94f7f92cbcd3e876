"""An archive is compared with a tuple that is appended to."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.errors import InvariantViolation
from ghostkv.protocol.archive import Archive
from ghostkv.protocol.archive_format import canonical, decode, encode
from ghostkv.protocol.facts import Position, Sentence
from ghostkv.protocol.log import Log
from ghostkv.protocol.token_log import CHUNK, RECENT, TokenLog

IDS = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**32 - 1)), max_size=40)
TEXT = st.text(st.one_of(st.characters(), st.sampled_from("\ud800\udfff\0\n")), max_size=20)
SENTENCES = st.lists(
    st.builds(
        Sentence,
        st.builds(Position, st.integers(0, 500), st.integers(0, 3), st.integers(0, 2**40)),
        st.integers(0, 999),
        st.sampled_from(["user", "assistant", "tool", ""]),
        TEXT,
        TEXT,
    ),
    max_size=3,
)


def sentence(number: int) -> Sentence:
    return Sentence(Position(0, 0, number), 0, "assistant", f"Sentence {number}.")


def test_segments_follow_each_other() -> None:
    archive = Archive().append([5, 6], [sentence(1)]).append([]).append([7])
    assert (archive.ids[:], archive.ends[:], archive.total) == ((5, 6, 7), (2, 2, 3), 3)
    assert archive.slice(1, 3) == (6, 7)
    assert archive.slice(3, 3) == ()
    assert archive.read([sentence(2)]).sentences[:] == (sentence(1), sentence(2))


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 3)])
def test_a_slice_outside_is_refused(start: int, stop: int) -> None:
    with pytest.raises(InvariantViolation, match="archive of 2"):
        Archive().append([5, 6]).slice(start, stop)


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5, "x"])
def test_what_is_no_id_is_refused(wrong: object) -> None:
    with pytest.raises(InvariantViolation, match="not an integer"):
        Archive().append([wrong])  # type: ignore[list-item]


@given(st.lists(st.tuples(st.integers(0, 9), IDS, SENTENCES), max_size=12))
def test_continuations_of_one_archive_do_not_disturb_each_other(
    steps: list[tuple[int, list[int], list[Sentence]]],
) -> None:
    """Each step goes on from any earlier archive; all of them are compared at the end."""
    known: list[tuple[Archive, tuple[int, ...], tuple[int, ...], tuple[Sentence, ...]]] = [(Archive(), (), (), ())]
    for chosen, ids, read in steps:
        archive, all_ids, ends, sentences = known[chosen % len(known)]
        total = (*all_ids, *ids)
        known.append((archive.append(ids, read), total, (*ends, len(total)), (*sentences, *read)))
    for archive, ids_then, ends_then, read_then in known:
        assert (archive.ids[:], archive.ends[:], archive.sentences[:]) == (ids_then, ends_then, read_then)
        assert decode(encode(archive)) == archive
        assert canonical(decode(encode(archive))) == canonical(archive)
        rebuilt = Archive().read(read_then)
        assert (rebuilt == archive) == (not ends_then)


@settings(max_examples=40)
@given(st.data())
def test_ids_across_chunks_read_like_a_tuple(data: st.DataObject) -> None:
    numbers = random.Random(data.draw(st.integers(0, 99)))
    expected: tuple[int, ...] = ()
    log = TokenLog()
    while len(expected) < 2 * CHUNK + RECENT + 50:
        piece = [numbers.randrange(49_152) for _ in range(numbers.randrange(3_000))]
        expected, log = (*expected, *piece), log.extended(piece)
    assert len(log) == len(expected)
    assert tuple(log) == expected
    assert log == TokenLog().extended(expected)  # whatever the pieces were
    edges = st.one_of(
        st.none(), st.integers(-len(expected) - 2, len(expected) + 2), st.sampled_from([0, CHUNK, 2 * CHUNK, CHUNK - 1])
    )
    step = data.draw(st.sampled_from([None, 1, 2, 977, -1, -1000]))
    where = slice(data.draw(edges), data.draw(edges), step)
    assert log[where] == expected[where]
    index = data.draw(st.integers(-len(expected), len(expected) - 1))
    assert log[index] == expected[index]
    with pytest.raises(IndexError):
        log[len(expected)]


def test_an_archive_of_131072_tokens_takes_at_most_two_bytes_each() -> None:
    """Words of a Zipf-like vocabulary with no repeated phrases compress worse than text does."""
    numbers = random.Random(5)
    archive = Archive()
    for _ in range(1024):
        archive = archive.append([int(49_152 ** numbers.random()) for _ in range(128)])
    assert archive.total == 131_072
    assert archive.ids.stored_bytes <= 2.2 * archive.total
    assert decode(encode(archive)) == archive


@given(st.binary(max_size=40))
def test_damaged_bytes_are_refused(noise: bytes) -> None:
    stored = encode(Archive().append([1, 2, 3], [sentence(1)]))
    at = len(noise) % len(stored)
    for damaged in (noise, stored[:at], stored[:at] + noise + stored[at + 1 :], stored + noise):
        if damaged == stored:
            continue
        try:
            decode(damaged)
        except InvariantViolation:
            continue
        # A damaged Adler sum aside, zlib has only a few bits that carry nothing.
        assert decode(damaged) == decode(stored)


def test_canonical_bytes_stay_as_they_are() -> None:
    archive = Archive().append([1, 300], [Sentence(Position(2, 0, 200), 1, "user", "Hé.", "Al")]).append([7])
    assert canonical(archive) == bytes([3, 1, 172, 2, 7, 2, 2, 1, 1, 2, 0, 200, 1, 1]) + b"\x04user\x04H\xc3\xa9.\x02Al"


@given(st.lists(st.tuples(st.integers(0, 9), st.text(string.ascii_letters, max_size=3)), max_size=12), st.data())
def test_logs_share_storage_but_not_content(steps: list[tuple[int, str]], data: st.DataObject) -> None:
    known: list[tuple[Log[str], str]] = [(Log(), "")]
    for chosen, letters in steps:
        log, before = known[chosen % len(known)]
        known.append((log.extended(letters), before + letters))
    for log, expected in known:
        assert (len(log), "".join(log), hash(log)) == (len(expected), expected, hash(Log(expected)))
        assert log == Log(expected)
        where = data.draw(st.slices(len(expected)))
        assert "".join(log[where]) == expected[where]
