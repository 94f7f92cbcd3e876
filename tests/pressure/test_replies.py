"""What is read from the bytes of a reply: tokens with their times, and how it ended."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ghostkv.pressure.cells import Job
from ghostkv.pressure.replies import Asked, Reply, read
from ghostkv.pressure.wire import Received

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str = "", *, usage: int | None = None, **more: Any) -> bytes:
    content: dict[str, Any] = {"choices": [{"index": 0, "text": text}], **more}
    if usage is not None:
        content["usage"] = {"prompt_tokens": 7, "completion_tokens": usage}
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


DONE = chunk(b"data: [DONE]\n\n") + chunk(b"")


def reply(*parts: bytes, left: str = "", output: int = 3, head: bytes = HEAD) -> Reply:
    """Parts that come one second after the other, words counted as tokens."""
    received = Received([float(i) for i in range(len(parts) + 1)], [head, *parts])
    asked = Asked(Job(7, output), 0.5, float(len(parts)), received, left)
    return read(asked, lambda text: len(text.split()))


def test_each_event_is_timed_by_the_part_that_completed_it() -> None:
    first, second = chunk(event("a ", usage=1)), chunk(event("b c ", usage=3))
    found = reply(first + second[:20], second[20:], DONE)
    assert found.arrivals == ((1.0, 1), (2.0, 3))
    assert (found.outcome, found.tokens, found.text_tokens, found.prompt_tokens) == ("complete", 3, 3, 7)
    assert found.first_s == 0.5
    assert found.gaps == [1.0, 0.0]  # two tokens in one event came together


def test_events_split_over_chunks_and_comments_between_them() -> None:
    whole = event("a ") + b": keep-alive\n\n" + event("b ") + event("c ")
    found = reply(chunk(whole[:9]), chunk(whole[9:-30]), chunk(whole[-30:]) + DONE)
    assert (found.outcome, found.tokens) == ("complete", 3)
    assert [at for at, _ in found.arrivals][-1] == 3.0


def test_without_usage_each_piece_of_text_is_a_token_and_the_last_word_is_usage() -> None:
    found = reply(chunk(event("a ")), chunk(event("")), chunk(event("b c ")), chunk(event(usage=3)) + DONE)
    assert [tokens for _, tokens in found.arrivals] == [1, 2, 3]


def test_a_body_without_chunks() -> None:
    found = reply(event("a b c", usage=3), b"data: [DONE]\n\n", head=b"HTTP/1.1 200 OK\r\n\r\n")
    assert (found.outcome, found.arrivals) == ("complete", ((1.0, 3),))


@pytest.mark.parametrize("usage,text", [(2, "a b"), (4, "a b c d"), (3, "a")])
def test_a_reply_of_another_length_is_short_whatever_the_engine_says(usage: int, text: str) -> None:
    found = reply(chunk(event(text, usage=usage)) + DONE)
    assert found.outcome == "short"
    assert found.reason


def test_refusals_breaks_timeouts() -> None:
    body = b'{"error": {"message": "too long"}}'
    refused = reply(body, head=b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n\r\n")
    assert (refused.outcome, refused.reason, refused.tokens) == ("refused", "HTTP 400: too long", 0)
    assert refused.first_s is None
    failed = reply(chunk(event("a ", usage=1)), chunk(b'data: {"error": {"message": "no"}}\n\n') + DONE)
    assert (failed.outcome, failed.reason, failed.tokens) == ("broken", "no", 1)
    cut = reply(chunk(event("a ", usage=1)))
    assert (cut.outcome, cut.reason) == ("broken", "the stream has no end")
    left = reply(chunk(event("a ", usage=1)), left="timeout")
    assert (left.outcome, left.tokens) == ("timeout", 1)
    nothing = read(Asked(Job(7, 3), 0.0, 1.0, Received(), "broken"), len)
    assert (nothing.outcome, nothing.reason) == ("broken", "no reply")


def test_segments_begin_with_the_request_and_share_what_comes_at_once() -> None:
    parts = [chunk(event("w " * 2, usage=2 * i)) for i in range(1, 5)]
    found = reply(*parts, DONE, output=8)
    assert found.segments(4) == [1.5, 2.0]
    assert found.segments(8) == [3.5]
    assert found.segments(100) == [3.5]  # shorter than one: the whole answer
    together = reply(chunk(event("w " * 8, usage=8)) + DONE, output=8)
    assert together.segments(4) == [0.5, 0.0]
