"""Several upstreams of one model: which is asked, and what becomes of a segment when one fails or comes back."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ghostkv.backends import upstreams
from ghostkv.backends.base import UpstreamState
from ghostkv.backends.openai_http import OpenAIBackend
from ghostkv.backends.upstream import FailedTry, Failure, Json, Upstream
from ghostkv.backends.upstream_member import Member
from ghostkv.backends.upstream_prefixes import SeenPrefixes, prefix_keys
from ghostkv.backends.upstream_probe import Findings, shares
from ghostkv.errors import ConfigError, EngineFault, InvalidRequest, Overloaded
from ghostkv.request import Delta, GenerationState
from ghostkv.routing import DEFAULT_ROUTER, Asked, router
from services import until
from stub_upstream import FOUND, PROMPT, StubUpstream, behind, collect, over, segment, stubbed, text

ANSWER = StubUpstream.answer.decode() * 20


@contextmanager
def several(*stubs: StubUpstream, **options: Any) -> Iterator[OpenAIBackend]:
    with ExitStack() as stack:
        backend = behind([stack.enter_context(stubbed(stub)) for stub in stubs], **options)
        stack.callback(backend.close)
        yield backend


def states(backend: OpenAIBackend) -> tuple[UpstreamState, ...]:
    return backend.snapshot().upstreams


def refuses(port: int) -> bool:
    """Whether nobody listens there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return True
    return False


def failovers(backend: OpenAIBackend) -> list[int]:
    return [state.failovers for state in states(backend)]


def told(backend: OpenAIBackend, tokens: int) -> tuple[str, BaseException | None]:
    """The text that was passed on, and what ended it."""
    seen: list[Delta] = []

    async def run() -> None:
        async for delta in backend.generate(segment(tokens)):
            seen.append(delta)

    try:
        asyncio.run(run())
    except EngineFault as error:
        return text(seen), error
    return text(seen), None


def test_an_upstream_that_breaks_off_is_asked_for_the_rest() -> None:
    """The one that there is: it answers, so it is asked again at once, as often as tokens come."""
    stub = StubUpstream(breaks_after=3)
    with over(stub) as backend:
        assert told(backend, 9) == (ANSWER[:9], None)
        assert [(len(body["prompt"]), body["max_tokens"]) for body in stub.bodies] == [(6, 9), (9, 6), (12, 3)]
        assert failovers(backend) == [2] and backend.snapshot().running == 0


def test_a_segment_goes_on_at_another_upstream() -> None:
    breaking, whole = StubUpstream(breaks_after=5), StubUpstream()
    with several(breaking, whole) as backend:
        begun = time.time()
        assert told(backend, 40) == (ANSWER[:40], None)
        assert [len(breaking.bodies), len(whole.bodies)] == [1, 1]
        assert whole.bodies[0]["prompt"] == [*PROMPT, *ANSWER[:5].encode()]
        assert whole.bodies[0]["max_tokens"] == 35
        assert failovers(backend) == [1, 0]
        assert until(lambda: all(state.healthy for state in states(backend)))  # a check found that it answers
        assert states(backend)[0].since >= begun > states(backend)[1].since
        assert [state.running for state in states(backend)] == [0, 0]


@pytest.mark.parametrize("status", [401, 404, 429, 500, 502, 503])
def test_a_refusal_sends_a_segment_elsewhere(status: int) -> None:
    refusing, whole = StubUpstream(refusals=[(status, {}, "no")]), StubUpstream()
    with several(refusing, whole) as backend:
        begun = time.monotonic()
        assert told(backend, 4) == ("abcd", None)
        assert time.monotonic() - begun < 5
        assert whole.bodies[0] == refusing.bodies[0] and failovers(backend) == [1, 0]


def test_a_request_that_is_wrong_is_wrong_everywhere() -> None:
    first, second = StubUpstream(refusals=[(400, {}, {"error": {"message": "bad x"}})]), StubUpstream()
    with several(first, second) as backend:
        with pytest.raises(InvalidRequest, match="400: bad x"):
            collect(backend, segment(4))
        assert not second.bodies and failovers(backend) == [0, 0]


def test_an_upstream_that_fails_with_a_segment_is_not_asked_again() -> None:
    """An error in mid-stream: where the server itself is well, it would only say it again."""
    failing = StubUpstream(fails_after=3)
    with over(failing) as backend:
        passed, error = told(backend, 9)
        assert passed == "abc" and isinstance(error, EngineFault) and "the engine died" in error.message
        assert len(failing.bodies) == 1
    with several(StubUpstream(fails_after=3), StubUpstream()) as backend:
        assert told(backend, 9) == (ANSWER[:9], None)


def test_a_segment_that_ends_every_upstream_is_given_up() -> None:
    """Whatever ends three of them without one token is not sent to a fourth."""
    stubs = [StubUpstream(breaks_after=0) for _ in range(5)]
    with several(*stubs) as backend:
        passed, error = told(backend, 9)
        assert (passed, sum(len(stub.bodies) for stub in stubs)) == ("", 3)
        assert isinstance(error, EngineFault) and "cannot be reached" in error.message


class Dial(Upstream):
    """An upstream that continues the alphabet, and does as it is told. Nothing is sent."""

    def __init__(self, name: str = "dial", script: list[tuple[int, Failure]] | None = None) -> None:
        self.address = f"http://{name}"
        self.script = script or []  # (tokens, then this failure) for each request; then whole answers
        self.problem = ""  # what a check finds
        self.bodies: list[Json] = []
        self.checks = 0

    async def close(self) -> None:
        pass

    async def check(self) -> None:
        self.checks += 1
        if self.problem:
            raise FailedTry(EngineFault(self.problem), Failure.AWAY)

    async def stream(self, body: Json) -> AsyncGenerator[Json, None]:
        self.bodies.append(body)
        done = len(body["prompt"]) - len(PROMPT)
        tokens, failure = self.script.pop(0) if self.script else (body["max_tokens"], None)
        for at in range(done, done + min(tokens, body["max_tokens"])):
            reason = None if at + 1 < done + body["max_tokens"] else "length"
            yield {"choices": [{"token_ids": [ord(ANSWER[at])], "finish_reason": reason}]}
            await asyncio.sleep(0)
        if failure is not None:
            raise FailedTry(EngineFault(f"it {failure}"), failure)


failures = st.sampled_from([Failure.AWAY, Failure.BROKE, Failure.FAULT])
scripts = st.lists(st.tuples(st.integers(0, 6), failures), max_size=4)


@settings(max_examples=60)
@given(st.lists(scripts, min_size=1, max_size=3))
def test_whatever_fails_no_token_is_lost_or_said_twice(scripts: list[list[tuple[int, Failure]]]) -> None:
    dials = [Dial(f"u{i}", list(script)) for i, script in enumerate(scripts)]
    backend = behind(dials, check_s=0.001)
    try:
        with mock.patch.object(upstreams, "_WAIT_S", 0.001):
            passed, error = told(backend, 30)
        assert passed == ANSWER[: len(passed)]
        assert len(passed) == 30 or error is not None
        for body in (body for dial in dials for body in dial.bodies):
            done = len(body["prompt"]) - len(PROMPT)
            assert bytes(body["prompt"]) == bytes(PROMPT) + ANSWER[:done].encode()
            assert done + body["max_tokens"] == 30
        left = sum(len(script) - len(dial.script) for script, dial in zip(scripts, dials, strict=True))
        assert sum(failovers(backend)) in (left, left - 1)  # the last may be whole before it fails
        assert [state.running for state in states(backend)] == [0] * len(dials)
        if error is not None:  # only for a reason: it failed three times without a token, or everywhere
            assert left >= min(3, len(dials))
    finally:
        backend.close()


def test_it_waits_for_one_that_is_restarted_and_asks_anew_what_that_can_do() -> None:
    """The same port, another process: first nobody listens, then one answers that has never seen the story."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    asked: list[str] = []

    async def again(member: Member) -> Findings:
        asked.append(member.upstream.address)
        return FOUND

    first, second = StubUpstream(breaks_after=5), StubUpstream()
    held = threading.Event()
    first.paused, first.paused_after = held, 5
    with ExitStack() as stack:
        here = stack.enter_context(ExitStack())
        url = here.enter_context(stubbed(first, port))
        backend = behind([url], check_s=0.05, again=again)
        stack.callback(backend.close)

        async def story() -> str:
            said = ""
            async for delta in backend.generate(segment(30)):
                said += delta.text
            return said

        async def run() -> str:
            going = asyncio.create_task(story())
            await asyncio.to_thread(until, lambda: len(first.bodies) == 1)
            closing = asyncio.create_task(asyncio.to_thread(here.close))
            await asyncio.to_thread(until, lambda: refuses(port))
            held.set()
            await closing
            await asyncio.to_thread(until, lambda: not backend._upstreams._members[0].known)  # looked at while away
            stack.enter_context(stubbed(second, port))
            return await going

        assert asyncio.run(run()) == ANSWER[:30]
        assert asked == [url] and states(backend)[0].healthy
        assert len(second.bodies) == 1 and failovers(backend)[0] >= 1


def test_waiting_ends() -> None:
    """After `wait_s`, also where that is less than what an answer waits that has said nothing; with the reason."""
    gone = Dial(script=[(3, Failure.BROKE)])
    gone.problem = "it is gone"
    backend = behind([gone], wait_s=0.3, check_s=0.01)
    try:
        begun = time.monotonic()
        passed, error = told(backend, 9)
        assert passed == "abc" and error is not None and error.args == ("it broke",)
        assert 0.3 <= time.monotonic() - begun < 5
        assert until(lambda: gone.checks > 5)
        begun = time.monotonic()
        _, error = told(backend, 9)
        assert error is not None and error.args == ("it is gone",)
        assert 0.3 <= time.monotonic() - begun < 5  # no longer than what has begun
        gone.problem = ""
        assert told(backend, 9) == (ANSWER[:9], None)
    finally:
        backend.close()


def test_an_answer_that_has_begun_waits_longer() -> None:
    """Its next segment, without a token of its own, counts too."""
    busy = Dial(script=[(0, Failure.BUSY)] * 5)
    backend = behind([busy], wait_s=30)
    try:
        with pytest.raises(EngineFault, match="it busy"):
            collect(backend, segment(5))
        assert len(busy.bodies) == 4  # it was asked again after 0.25, 0.5 and 1 s
        assert text(collect(backend, replace(segment(5), state=GenerationState(emitted=8)))) == "abcde"
        assert len(busy.bodies) == 6
    finally:
        backend.close()


def test_an_upstream_that_comes_back_as_another_is_not_used() -> None:
    """It answers, but cannot do what was offered when the backend started."""
    gone, stays = Dial("gone", [(3, Failure.AWAY)]), Dial("stays")
    gone.problem = "it is gone"

    async def again(member: Member) -> Findings:
        return FOUND.adapted(replace(FOUND, max_context=100, lacks=frozenset({"min_p"})))

    backend = behind([gone, stays], check_s=0.01, again=again)
    try:
        assert told(backend, 9) == (ANSWER[:9], None)
        gone.problem = ""
        checks = gone.checks
        assert until(lambda: gone.checks > checks + 3)
        assert [state.healthy for state in states(backend)] == [False, True]
        assert told(backend, 9) == (ANSWER[:9], None)
        assert [len(gone.bodies), len(stays.bodies)] == [1, 2]
    finally:
        backend.close()


def test_a_check_finds_who_is_gone_before_a_segment_does() -> None:
    first, second = Dial("first"), Dial("second")
    backend = behind([first, second], check_s=0.01)
    try:
        assert told(backend, 3) == ("abc", None)
        first.problem = "it is gone"
        assert until(lambda: not states(backend)[0].healthy)
        assert told(backend, 3) == ("abc", None)
        first.problem = ""
        assert until(lambda: states(backend)[0].healthy)
        assert told(backend, 3) == ("abc", None)
        assert [len(first.bodies), len(second.bodies)] == [2, 1] and failovers(backend) == [0, 0]
    finally:
        backend.close()


def test_what_all_can_do_is_offered_and_who_is_why_is_said() -> None:
    able = replace(FOUND, score=True, sample="one")
    bare = replace(FOUND, model="other", max_context=128, token_ids=False, lacks=frozenset({"min_p"}), sample="two")
    offered = Findings.common([able, bare])
    assert offered == replace(able, max_context=128, token_ids=False, score=False, lacks=frozenset({"min_p"}))
    assert offered.adapted(able) == offered and offered.adapted(bare) == replace(offered, model="other")
    with pytest.raises(ConfigError, match="min_p, token_ids, score, a context of 256 tokens"):
        able.adapted(bare)
    said = shares({"http://a": able, "http://b": bare})
    assert "min_p is refused (because of http://b)" in said
    assert "of the 256 tokens of context at http://a 128 are used" in said
    assert any(line.startswith("http://b continues a sample otherwise") for line in said)
    assert "no answer is exact: strict and deterministic are refused" in said  # of no one's in particular
    assert shares({"http://a": able}) == list(able.costs)


def members(count: int) -> list[Member]:
    made = [Member(Dial(f"u{i}")) for i in range(count)]
    for member in made:
        member.join(FOUND)
    return made


def least(among: list[Member], ids: tuple[int, ...]) -> int:
    seen = [member.resource(len(ids), prefix_keys(ids)) for member in among]
    return router(DEFAULT_ROUTER).choose(Asked(0, b""), seen)


def test_a_session_returns_to_its_prefix_as_far_as_that_is_worth_it() -> None:
    one, other = members(2)
    talk = tuple(range(100, 420))
    with other.visit(talk, []) as visit:
        visit.heard()
    assert least([one, other], talk) == 1  # the last token is computed, and no other
    assert least([one, other], (*talk, *range(1000))) == 1
    assert least([one, other], tuple(range(320))) == 0
    with ExitStack() as stack:
        for _ in range(8):  # others decode there; they share steps with what comes
            stack.enter_context(other.visit(talk, [])).heard()
        assert least([one, other], (*talk, *range(9))) == 1  # 9 to compute, in steps of 9, against 329 alone
        assert least([one, other], (*talk, *range(90))) == 0  # 90, against 410
        assert other.running == 8 and other.reading == 0
    other.lost("restarted, so its cache is empty")
    other.join(FOUND)
    assert least([one, other], talk) == 0


def test_prompts_that_are_not_read_yet_count_as_work() -> None:
    one, other = members(2)
    with one.visit(range(500), []) as reading, other.visit(range(1000, 1300), []):
        assert (one.reading, other.reading) == (500, 300)
        assert least([one, other], (7, 8, 9)) == 1
        reading.heard()
        reading.heard()
        assert (one.reading, one.running) == (0, 1)
        assert least([one, other], (7, 8, 9)) == 0
    assert (one.reading, other.reading, one.running, other.running) == (0, 0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40), st.integers(0, 3), st.integers(0, 90))
def test_the_longest_prefix_that_was_seen_lately(seen: list[tuple[int, int]], talk: int, length: int) -> None:
    """Against keeping every prefix of every conversation that was sent; 12 blocks are remembered."""
    talks = [[talk * 1000 + at for at in range(96)] for talk in range(4)]
    prefixes, used = SeenPrefixes(most=12), dict[tuple[int, ...], int]()
    now = 0
    for which, blocks in seen:
        ids = talks[which][: 16 * blocks + 3]
        prefixes.add(prefix_keys(ids))
        for end in range(16, len(ids) + 1, 16):
            used[tuple(ids[:end])] = now = now + 1
    latest = sorted(used, key=lambda prefix: -used[prefix])[:12]
    found = 0
    while found + 16 <= length and tuple(talks[talk][: found + 16]) in latest:
        found += 16
    assert prefixes.tokens(prefix_keys(talks[talk][:length])) == found


def test_busy_everywhere_is_said_with_when_to_come_back() -> None:
    refusals: list[tuple[int, dict[str, str], Any]] = [(429, {"retry-after": "7"}, "full")]
    with several(StubUpstream(refusals=refusals[:]), StubUpstream(refusals=refusals[:])) as backend:
        begun = time.monotonic()
        with pytest.raises(Overloaded, match="429: full") as raised:
            collect(backend, segment(4))
        assert raised.value.retry_after == 7
        assert time.monotonic() - begun < 2  # it is not waited for in vain
