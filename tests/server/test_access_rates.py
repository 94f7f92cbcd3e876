"""A key's own limits: exact windows, Retry-After that is enough, and what clients make of a refusal."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import RateLimited
from ghostkv.server.metering import Metering
from ghostkv.server.rates import Meter, Rates, Spent
from keys import access, bearer, client, key_of
from services import ScriptedBackend, Service, saying, scripted_worker, serving, until

ASK = [{"role": "user", "content": "hi"}]


@given(
    st.lists(st.tuples(st.floats(0, 25), st.integers(1, 9)), max_size=40),
    st.integers(1, 40),
)
def test_what_counts_is_the_last_minute(steps: list[tuple[float, int]], most: int) -> None:
    spent, now, all_of_it = Spent(), 1000.25, list[tuple[float, int]]()

    def total(at: float) -> int:
        return sum(amount for when, amount in all_of_it if math.floor(when) + 60 > at)

    for pause, amount in steps:
        now += pause
        wait = spent.wait(most, now)
        assert (wait == 0) == (total(now) < most)
        if wait:
            assert 0 < wait <= 60
            assert total(now + wait) < most <= total(now + wait - 0.001)
        spent.add(amount, now)
        all_of_it.append((now, amount))


def test_who_waits_as_long_as_it_is_told_is_admitted() -> None:
    meter, now, admitted = Meter(Rates(requests_per_minute=3)), 5.9, list[float]()
    for _ in range(20):
        try:
            meter.leave(meter.enter(now), now)
            admitted.append(now)
        except RateLimited as refused:
            assert 1 <= refused.retry_after <= 60
            assert len([at for at in admitted if now - 60 < at]) == 3
            now += refused.retry_after
    assert len(admitted) > 9
    assert all(later - earlier > 59 for earlier, later in zip(admitted, admitted[3:], strict=False))


def test_the_wait_for_a_place_follows_how_long_requests_take() -> None:
    meter, now = Meter(Rates(concurrent=2)), 0.0
    for _ in range(40):
        began = meter.enter(now)
        now += 30.0
        meter.leave(began, now)
    first, _ = meter.enter(now), meter.enter(now)
    with pytest.raises(RateLimited) as refused:
        meter.enter(now)
    assert refused.value.retry_after == 15  # one of two ends every 15 seconds
    meter.leave(first, now)
    meter.enter(now)


def limited(**rates: int) -> Any:
    worker = scripted_worker(ScriptedBackend(saying("abcdefgh" * 110), seconds=0.002))
    return serving(worker, access=access("alice", "bob", rates=Rates(**rates)), observers=(Metering(worker),))


def refusal(service: Service, tenant: str, **more: Any) -> openai.RateLimitError:
    with client(service, key_of(tenant)) as asking, pytest.raises(openai.RateLimitError) as refused:
        asking.chat.completions.create(model="scripted", messages=ASK, max_tokens=2, **more)
    assert refused.value.type == "rate_limit_error"
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    assert refused.value.response.headers["x-request-id"]
    return refused.value


def total(service: Service, tenant: str, **more: Any) -> int:
    body = {"model": "scripted", "messages": ASK, "max_tokens": 3} | more
    reply = service.http.post("/v1/chat/completions", json=body, headers=bearer(tenant))
    assert reply.status_code == 200, reply.text
    return int(reply.json()["usage"]["total_tokens"])


def test_requests_per_minute_of_each_key() -> None:
    with limited(requests_per_minute=2) as service:
        total(service, "alice")
        assert service.http.post("/v1/completions", json={}, headers=bearer("alice")).status_code == 400
        refusal(service, "alice")
        refusal(service, "alice", stream=True)
        for _ in range(5):  # reading costs nothing
            assert service.http.get("/v1/models", headers=bearer("alice")).status_code == 200
        total(service, "bob")


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_tokens_per_minute_are_those_of_usage(more: dict[str, Any]) -> None:
    """As much as `usage` says and no more: with one token more to spend the next request is admitted."""
    with limited() as service:
        needed = total(service, "alice", **{name: value for name, value in more.items() if name == "n"})
    for spare, admitted in ((0, False), (1, True)):
        with limited(tokens_per_minute=needed + spare) as service:
            long = "x" * 2000
            too_long = {"model": "scripted", "messages": [{"role": "user", "content": long}], "max_tokens": 3}
            reply = service.http.post("/v1/chat/completions", json=too_long, headers=bearer("alice"))
            assert reply.status_code == 400  # and counts nothing
            body = {"model": "scripted", "messages": ASK, "max_tokens": 3} | more
            assert service.http.post("/v1/chat/completions", json=body, headers=bearer("alice")).status_code == 200
            if admitted:
                total(service, "alice")
            else:
                assert "tokens per minute" in refusal(service, "alice").message


def test_a_client_that_leaves_pays_for_its_prompt() -> None:
    with limited(tokens_per_minute=5) as service, client(service, key_of("alice")) as asking:
        stream = asking.chat.completions.create(model="scripted", messages=ASK, max_tokens=500, stream=True)
        next(iter(stream))
        stream.close()
        assert until(lambda: service.worker.backend.engine.idle)
        refusal(service, "alice")


def test_requests_at_a_time_of_each_key() -> None:
    with limited(concurrent=1) as service, client(service, key_of("alice")) as asking:
        stream = asking.chat.completions.create(model="scripted", messages=ASK, max_tokens=800, stream=True)
        next(iter(stream))
        refusal(service, "alice")
        total(service, "bob")
        stream.close()

        def admitted() -> bool:
            reply = service.http.post("/v1/completions", json={}, headers=bearer("alice"))
            return bool(reply.status_code != 429)

        assert until(admitted)
        total(service, "alice")
