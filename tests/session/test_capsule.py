"""Capsules: an answer goes on from one as if nothing had happened, each part is needed, and nothing damaged gets in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsules import Said, capsules, go_on, run, with_short_segments
from ghostkv.errors import GhostError, RecordRefused
from ghostkv.protocol.payload import Payload, Sealed
from ghostkv.protocol.transition import Memory
from ghostkv.request import FinishReason, Message, Sampling, Token
from ghostkv.session.capsule import Capsule, seal, unseal
from ghostkv.session.manifest import Manifest
from ghostkv.session.plain import decode, encode
from ghostkv.session.resumption import resumed
from ghostkv.session.start import FROM_THE_START
from ghostkv.session.turn import Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

Answered = Callable[[str], tuple[Said, list[Capsule]]]
HERE = Manifest((("model", "m"), ("torch", "2.13")))
TALK = (
    Message("system", "You tell of ships."),
    Message("user", "The Halcyon has 14 masts and its code is AX-12."),
    Message("assistant", "Noted. Captain Ilse Brandt commands it."),
    Message("user", "Tell me about the 14 ships of Lisbon, one after the other."),
)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11, logprobs=2, frequency_penalty=0.3, repetition_penalty=1.1)
TURN = Turn("t", SAMPLED, max_tokens=150, messages=TALK, ignore_eos=True, tenant="t", residency="segment")
ASKED = {
    "segment": TURN,
    "greedy": replace(TURN, sampling=Sampling(temperature=0.0), stop=("zq!", "\x00\x00")),
    "full": replace(TURN, residency="full"),
    "auto": replace(TURN, residency="auto"),
    "sink_window": replace(TURN, residency="sink_window"),
    "prompt": replace(TURN, messages=(), prompt=tuple(range(40, 90)), sampling=replace(SAMPLED, min_tokens=20)),
    "ends": replace(TURN, ignore_eos=False, max_tokens=400, sampling=replace(SAMPLED, temperature=2.5, seed=3)),
}


@pytest.fixture(scope="module")
def worker(small_worker: Worker) -> Worker:
    return with_short_segments(small_worker)


@pytest.fixture(scope="module")
def answered(worker: Worker) -> Answered:
    return cache(lambda name: capsules(worker, ASKED[name], HERE))


def middle(found: list[Capsule]) -> Capsule:
    """One inside the third segment."""
    return next(c for c in found if c.carried is not None and c.carried.cursor.segment == 2 and open_tokens(c) == 9)


def open_tokens(capsule: Capsule) -> int:
    turn = capsule.record.turns[-1]
    return turn.tokens - (capsule.carried.state.emitted if capsule.carried else 0)


# --- going on ---


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_goes_on_bit_for_bit_from_everywhere(worker: Worker, answered: Answered, name: str) -> None:
    """Tokens, log-probabilities, text, boundaries and end are those of the run that nothing interrupted."""
    expected, found = answered(name)
    assert len(found) > 20
    for index in {0, 1, len(found) - 1, len(found) - 2, *range(7, len(found), 41)}:
        again = go_on(worker, Capsule.decode(found[index].encode(), HERE))
        assert again == expected, index


def test_at_most_one_segment_is_generated_again(worker: Worker, answered: Answered) -> None:
    expected, found = answered("segment")
    assert len(expected.generated) > 3
    for capsule in found:
        kept = resumed(capsule, worker, None).record.turns[-1]
        assert kept.tokens == (capsule.carried.state.emitted if capsule.carried else 0)
        assert capsule.record.turns[-1].tokens - kept.tokens <= 40


def test_a_kept_session_generates_nothing_again_but_prefills_it(worker: Worker, answered: Answered) -> None:
    expected, found = answered("full")
    capsule = found[len(found) // 2]
    start = resumed(capsule, worker, None).start
    assert len(start.ids) == capsule.record.turns[-1].tokens > 50
    rest, _ = run(worker, ASKED["full"], start)
    assert sum(len(event.tokens) for event in rest if isinstance(event, Output)) == 150 - len(start.ids)
    [record] = [event for event in rest if isinstance(event, SegmentRecord)]
    generated = record.usage.generated_tokens
    assert (record.restored, generated) == (len(start.ids), *expected.generated) == (len(start.ids), 150)
    assert capsule.answering is not None and record.usage.prompt_tokens == len(capsule.answering.prompt)


def test_a_plan_starts_over(worker: Worker) -> None:
    turn = replace(TURN, plan="auto", max_tokens=60, sampling=Sampling(temperature=0.0))
    found = capsules(worker, turn, HERE)[1][-1]
    again = resumed(found, worker, None)
    assert again.start is FROM_THE_START and again.record.turns[-1].tokens == 0


def test_what_the_log_does_not_tell_is_generated_again(worker: Worker, answered: Answered) -> None:
    """A log whose text is not that of its tokens (text that waited for a token) is used up to there."""
    expected, found = answered("full")
    turn = found[40].record.turns[-1]
    outputs = [event for event in turn.events if isinstance(event, Output)]
    changed = [*outputs[:30], replace(outputs[30], text="?"), *outputs[31:]]
    capsule = replace(found[40], record=found[40].record.with_last(turn.refilled(changed)))
    assert len(resumed(capsule, worker, None).start.ids) == sum(len(output.tokens) for output in outputs[:30])
    assert go_on(worker, capsule) == expected


# --- every part is needed ---

EMPTY = Memory()


def blanked(capsule: Capsule, name: str) -> Capsule:
    """With one part as if it had never been."""
    carried, answering, record = capsule.carried, capsule.answering, capsule.record
    assert carried is not None and answering is not None
    memory, turn = carried.memory, answering.turn
    blank = Sealed(Payload(cursor=carried.cursor), Payload(cursor=carried.cursor).encode())
    parts: dict[str, Callable[[], Capsule]] = {
        "history": lambda: replace(capsule, answering=replace(answering, prompt=())),
        "payload": lambda: Capsule.at(
            capsule.manifest, record, answering, replace(carried, memory=replace(memory, payload=blank))
        ),
        "archive": lambda: replace(capsule, carried=replace(carried, memory=replace(EMPTY, payload=memory.payload))),
        "state": lambda: replace(capsule, carried=replace(carried, state=replace(carried.state, counts=()))),
        "rules": lambda: replace(capsule, carried=replace(carried, state=replace(carried.state, rules=()))),
        "counter": lambda: replace(capsule, carried=replace(carried, state=replace(carried.state, emitted=0))),
        "client ids": lambda: replace(
            capsule, carried=replace(carried, state=replace(carried.state, client_ids=frozenset()))
        ),
        "open text": lambda: replace(capsule, carried=replace(carried, open_text=replace(carried.open_text, length=0))),
        "seed": lambda: replace(
            capsule, answering=replace(answering, turn=replace(turn, sampling=replace(turn.sampling, seed=0)))
        ),
        "messages": lambda: replace(capsule, answering=replace(answering, turn=replace(turn, messages=TALK[-1:]))),
        "decisions": lambda: replace(
            capsule,
            record=record.with_last(
                record.turns[-1].refilled([e for e in record.turns[-1].events if isinstance(e, Output)])
            ),
        ),
        "tokens": lambda: replace(capsule, record=record.with_last(record.turns[-1].refilled(()))),
        "carried": lambda: replace(capsule, carried=None),
        "answer": lambda: replace(capsule, answering=None),
        "manifest": lambda: replace(capsule, manifest=Manifest()),
    }
    return parts[name]()


BLANKED = [
    *("history", "payload", "archive", "state", "rules", "counter", "client ids", "open text", "seed", "messages"),
    *("decisions", "tokens", "carried", "answer", "manifest"),
]


@pytest.mark.parametrize("name", BLANKED)
def test_without_a_part_restoring_fails_or_diverges(worker: Worker, answered: Answered, name: str) -> None:
    expected, found = answered("segment")
    capsule = middle(found)
    try:
        again = go_on(worker, Capsule.decode(blanked(capsule, name).encode(), HERE))
    except GhostError:
        return
    assert again != expected


def test_a_part_that_is_left_out_is_refused(answered: Answered) -> None:
    """Each of them, at every depth: the checksum is right, and still nothing is restored."""
    parts = decode(unseal(middle(answered("segment")[1]).encode()))
    for path in paths(parts):
        with pytest.raises(RecordRefused):
            Capsule.decode(seal(encode(without(parts, path))), HERE)


def paths(parts: tuple[Any, ...]) -> list[tuple[int, ...]]:
    top = [(index,) for index in range(len(parts))]
    return [*top, *((index, inner) for index in (2, 3, 4) for inner in range(len(parts[index])))]


def without(parts: tuple[Any, ...], path: tuple[int, ...]) -> tuple[Any, ...]:
    first, *rest = path
    inner = (without(parts[first], tuple(rest)),) if rest else ()
    return (*parts[:first], *inner, *parts[first + 1 :])


def test_another_tenant_s_blocks_are_not_found(answered: Answered) -> None:
    capsule = Capsule.decode(middle(answered("segment")[1]).encode(), HERE)
    assert capsule.answering is not None and capsule.answering.turn.tenant == "t" == capsule.record.tenant


# --- nothing damaged gets in ---


def test_equal_capsules_have_equal_bytes(answered: Answered) -> None:
    for capsule in answered("segment")[1][::31]:
        data = capsule.encode()
        again = Capsule.decode(data, HERE)
        assert again == capsule and again.encode() == data


def test_one_flipped_byte_is_always_refused(answered: Answered) -> None:
    data = middle(answered("segment")[1]).encode()

    @given(st.integers(0, len(data) - 1), st.integers(1, 255))
    @settings(max_examples=300)
    def check(at: int, flip: int) -> None:
        with pytest.raises(RecordRefused):
            Capsule.decode(data[:at] + bytes((data[at] ^ flip,)) + data[at + 1 :], HERE)

    check()
    for length in (0, 3, 4, 35, 36, len(data) - 1):
        with pytest.raises(RecordRefused):
            Capsule.decode(data[:length], HERE)


def test_a_foreign_or_newer_capsule_is_refused_by_name(answered: Answered) -> None:
    data = middle(answered("segment")[1]).encode()
    with pytest.raises(RecordRefused, match=r"torch is 2.13, here 2.14"):
        Capsule.decode(data, Manifest((("model", "m"), ("torch", "2.14"))))
    with pytest.raises(RecordRefused, match="ghostkv is not named, here 9"):
        Capsule.decode(data, Manifest((*HERE.parts, ("ghostkv", "9"))))
    with pytest.raises(RecordRefused, match="version 3, but this build reads version 2"):
        Capsule.decode(data[:3] + b"\x03" + data[4:], HERE)


texts = st.text(st.characters(exclude_categories=())) | st.just("\ud800\x00é")
pairs = st.lists(st.tuples(st.integers(0), st.floats(allow_nan=False)), max_size=2)
tokens = st.builds(Token, st.integers(0, 2**31), st.none() | st.floats(allow_nan=False), pairs.map(tuple))


@given(st.lists(st.builds(Output, st.lists(tokens, max_size=3).map(tuple), texts), max_size=3), texts)
def test_plain_values_come_back(outputs: list[Output], text: str) -> None:
    said = Message("user", text, (1, 2))
    value = (tuple(outputs), said, FinishReason.STOP, b"\x00\xff", frozenset((3, 1)), None, True)
    data = encode(value)
    assert decode(data) == value and encode(decode(data)) == data


DAMAGED = [b"", b"{}", b'{"os":[]}', b'{"Token":[1]}', b'{"Token":[1,null,[],2]}', b"[" * 9999, b'{"Decision":"x"}']


@pytest.mark.parametrize("data", DAMAGED)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(RecordRefused):
        decode(data)


def test_the_manifest_names_ghostkv_and_all_that_prompts_depend_on(small_worker: Worker) -> None:
    parts = dict(small_worker.named.parts)
    assert parts["ghostkv"] == "0.1.0" and parts["torch"] and parts["jinja2"] and parts["tokenizers"]
    assert len({parts["model"], parts["extractor"], parts["engine"], parts["template"], parts["tokenizer"]}) == 5
    assert small_worker.manifest == small_worker.named.digest and len(small_worker.manifest) == 32
