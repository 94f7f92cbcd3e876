"""Refusals before any generation, with the numbers; and what is not refused always fits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import fake_capabilities
from ghostkv.errors import ConfigError, ContextLengthExceeded
from ghostkv.residency import policy
from ghostkv.session.fit import check_pool, check_turn, pool_tokens

FULL, SEGMENT = policy("full"), policy("segment")


def test_pool_tokens_are_whole_blocks() -> None:
    assert pool_tokens(fake_capabilities(pool_tokens=100)) == 96


def test_start_up_needs_the_constants_and_two_blocks() -> None:
    needed = 336 + 2 * 16  # the constants, 324, in whole blocks
    check_pool(SEGMENT, fake_capabilities(pool_tokens=368))
    check_pool(FULL, fake_capabilities(pool_tokens=16))
    with pytest.raises(ConfigError) as refused:
        check_pool(SEGMENT, fake_capabilities(pool_tokens=367))
    for number in (352, needed, 72, 34, 26, 192, needed * 100):
        assert str(number) in refused.value.message


@pytest.mark.parametrize(("prompt", "answer"), [(95, 5), (1, 99), (99, 1)])
def test_full_is_served_up_to_the_context_and_no_further(prompt: int, answer: int) -> None:
    roomy = fake_capabilities(max_context=100)
    check_turn(FULL, roomy, prompt=prompt, head=1, max_tokens=answer)
    with pytest.raises(ContextLengthExceeded) as refused:
        check_turn(FULL, roomy, prompt=prompt, head=1, max_tokens=answer + 1)
    assert refused.value.message == (
        f"This model's maximum context length is 100 tokens, but the request needs 101 ({prompt} in the prompt, "
        f"{answer + 1} for the answer): context_length_exceeded, it exceeds the available context size."
    )


def test_full_is_bounded_by_the_pool_whose_last_token_needs_no_slot() -> None:
    small = fake_capabilities(max_context=1000, pool_tokens=96)
    check_turn(FULL, small, prompt=60, head=1, max_tokens=37)
    with pytest.raises(ContextLengthExceeded, match="length is 97 tokens, but the request needs 98 "):
        check_turn(FULL, small, prompt=60, head=1, max_tokens=38)


@pytest.mark.parametrize(
    ("context", "pool", "head", "answer", "fits"),
    [
        (256, 4096, 255, 1, True),  # an answer of one segment needs its own length only
        (256, 4096, 255, 2, False),
        (400, 4096, 136, 5000, True),  # head + tail 72 + cap 192
        (400, 4096, 137, 5000, False),
        (
            4096,
            544,
            221,
            5000,
            True,
        ),  # 221 + 132 + 192 = 545: the last token needs no slot
        (4096, 544, 222, 5000, False),
        (4096, 544, 545 - 50, 50, True),
    ],
)
def test_the_head_of_a_segment(context: int, pool: int, head: int, answer: int, fits: bool) -> None:
    room = fake_capabilities(max_context=context, pool_tokens=pool)
    if fits:
        check_turn(SEGMENT, room, prompt=head, head=head, max_tokens=answer)
        return
    with pytest.raises(ContextLengthExceeded) as refused:
        check_turn(SEGMENT, room, prompt=head, head=head, max_tokens=answer)
    needed = head + min(answer, (72 if context < pool else 132) + 192)
    for part in (f"head (system messages and the last message) is {head}", f"needs {needed}", f"length is {context}"):
        assert part in refused.value.message
    assert f"the KV pool holds {pool}" in refused.value.message
    assert "tail 72 + state 34 + recall 26 + cap 192" in refused.value.message


@given(
    head=st.integers(1, 500),
    earlier=st.integers(0, 400),
    answer=st.integers(1, 900),
    context=st.integers(2, 900),
    pool=st.integers(25, 60),
    ends=st.lists(st.integers(1, 192), min_size=1, max_size=8),
)
def test_what_is_accepted_fits_in_every_segment(
    head: int, earlier: int, answer: int, context: int, pool: int, ends: list[int]
) -> None:
    room = fake_capabilities(max_context=context, pool_tokens=pool * 16)
    budget = SEGMENT.budget
    assert budget is not None
    try:
        check_turn(SEGMENT, room, prompt=head + earlier, head=head, max_tokens=answer)
    except ContextLengthExceeded:
        assert head + earlier + min(answer, 132 + 192) > min(context, pool * 16 + 1)  # what fits whole is never refused
        return
    emitted = 0
    for i in range(len(ends) * 10):
        remaining = answer - emitted
        reserved = SEGMENT.reserve(remaining)
        least = min(budget.tail, emitted)
        allowed = budget.allowance(head=head, remaining=remaining, context=room.max_context)
        assert allowed >= head + least  # claims 1 to 3 always fit
        kept = min(earlier, allowed - head - least)
        prompt = head + kept + min(emitted, allowed - head - kept)  # what no exchange takes makes the tail longer
        assert prompt + reserved <= context
        assert math.ceil((prompt + reserved - 1) / 16) <= pool
        emitted += min(ends[i % len(ends)], reserved)
        if emitted >= answer:
            return
