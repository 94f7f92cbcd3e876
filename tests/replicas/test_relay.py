"""What the relay tells clients, over replicas whose replies are written down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from ghostkv.replicas.asked import Asked, Message, ReplicaGone
from ghostkv.replicas.relay import Relay

STREAM = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
SESSION = {"model": "m", "prompt": "p", "stream": True, "ghostkv": {"session": "s"}}
COMPLETIONS = "/v1/completions"


def piece(body: str, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body.encode(), "more_body": more}


def token(number: int, text: str = "", reply: str = "r", reason: str = "null") -> str:
    choice = f'{{"text":"{text or number}","finish_reason":{reason}}}'
    return f'id: {number}\ndata: {{"id":"{reply}","choices":[{choice}]}}\n\n'


def broke(code: str, at: int = 0) -> str:
    return f"id: {at}\ndata: {json.dumps({'error': {'message': 'm', 'code': code}})}\n\n"


def plain(status: int, body: Any) -> list[Message]:
    start = {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
    return [start, piece(json.dumps(body), more=False)]


def refused(status: int, code: str) -> list[Message]:
    return plain(status, {"error": {"message": code, "code": code}})


def refused_reply(code: str) -> list[Any]:
    return ["three", refused(409 if code == "session_elsewhere" else 503, code)]


DONE = piece("data: [DONE]\n\n", more=False)


@dataclass
class Written:
    """`Replicas` that reply one after another as it is written, and note what they were asked."""

    replies: Sequence[Sequence[Any]]  # steps: what is yielded, seconds that it takes, or what is raised
    asked: list[Asked] = field(default_factory=list)
    routes: list[str] = field(default_factory=list)
    closed: int = 0

    async def ask(self, asked: Asked, route: str) -> AsyncGenerator[str | list[Message]]:
        self.asked.append(asked)
        self.routes.append(route)
        try:
            for step in self.replies[min(len(self.asked), len(self.replies)) - 1]:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, type):
                    raise step
                else:
                    yield step
        finally:
            self.closed += 1


@dataclass
class Seen:
    messages: list[Any]
    raised: Exception | None

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def body(self) -> str:
        return b"".join(message.get("body", b"") for message in self.messages).decode()

    @property
    def whole(self) -> bool:
        return not self.messages[-1]["more_body"]


def relayed(
    replicas: Written,
    body: Any = SESSION,
    path: str = COMPLETIONS,
    method: str = "POST",
    *,
    patience_s: float = 5.0,
    keep_alive_s: float = 60.0,
    stays: Callable[[], bool] = lambda: True,
) -> Seen:
    """All that a client is sent, which hangs up once it does not stay."""

    async def run() -> Seen:
        sent = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        messages: list[Any] = []

        async def receive() -> Any:
            if sent:
                return sent.pop()
            while stays():
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": []}
        relay = Relay(replicas, patience_s, keep_alive_s)
        try:
            await asyncio.wait_for(relay(scope, receive, send), 10)
        except RuntimeError as error:
            return Seen(messages, error)
        return Seen(messages, None)

    return asyncio.run(run())


def test_a_stream_is_passed_on_piece_by_piece() -> None:
    replicas = Written([["one", [STREAM, piece(token(0))], [piece(token(1)), DONE]]])
    seen = relayed(replicas)
    assert [message.get("body", b"").decode() for message in seen.messages] == [
        "",
        token(0),
        token(1),
        "data: [DONE]\n\n",
    ]
    assert seen.whole and replicas.closed == 1


def test_a_session_s_stream_goes_on_at_another_replica_after_the_token_that_the_client_has() -> None:
    first = ["one", [STREAM, piece(": keep-alive\n\n"), piece(token(0)), piece(token(1))], ReplicaGone]
    second = ["two", [STREAM, piece(token(0) + token(1))], [piece(token(2)), DONE]]
    replicas = Written([first, refused_reply("session_elsewhere"), second])
    seen = relayed(replicas)
    assert seen.body == ": keep-alive\n\n" + "".join(map(token, range(3))) + "data: [DONE]\n\n" and seen.whole
    assert [asked.gone for asked in replicas.asked] == [(), ("one",), ("one",)]
    assert len({asked.ticket for asked in replicas.asked}) == 1 and replicas.asked[0].body == replicas.asked[2].body
    assert replicas.routes[0] == "s" and len(set(replicas.routes)) == 3


@pytest.mark.parametrize("code", ["draining", "session_elsewhere", "engine_fault"])
def test_an_answer_that_a_replica_lets_go_goes_on_at_another(code: str) -> None:
    first = ["one", [STREAM, piece(token(0)), piece(broke(code)), DONE]]
    second = ["two", [STREAM, piece(token(0)), piece(token(1)), DONE]]
    replicas = Written([first, second])
    assert relayed(replicas).body == token(0) + token(1) + "data: [DONE]\n\n"
    assert replicas.asked[1].gone == ()


def test_what_was_said_of_the_end_is_not_said_again() -> None:
    """The counts in the last frames tell of the run, and may differ after a restart."""
    end = token(0, reason='"length"')
    first = ["one", [STREAM, piece(token(0)), piece(end)], ReplicaGone]
    second = ["two", [STREAM, piece(token(0)), piece(end.replace('"text"', '"cached":3,"text"')), DONE]]
    assert relayed(Written([first, second])).body == token(0) + end + "data: [DONE]\n\n"


def test_other_tokens_than_the_client_has_are_never_joined_to_them() -> None:
    first = ["one", [STREAM, piece(token(0)), piece(token(1))], ReplicaGone]
    second = ["two", [STREAM, piece(token(0)), piece(token(1, "other")), piece(token(2)), DONE]]
    seen = relayed(Written([first, second]))
    assert seen.body.startswith(token(0) + token(1)) and "other tokens" in seen.body and token(2) not in seen.body
    assert seen.body.endswith("data: [DONE]\n\n") and seen.whole


def test_a_failure_of_the_answer_itself_is_passed_on() -> None:
    replicas = Written([["one", [STREAM, piece(token(0)), piece(broke("deadline_exceeded")), DONE]]])
    seen = relayed(replicas)
    assert '"deadline_exceeded"' in seen.body and seen.body.endswith("data: [DONE]\n\n") and len(replicas.asked) == 1


def test_without_a_session_a_reply_is_asked_for_again_until_something_was_said() -> None:
    body = SESSION | {"ghostkv": {}}
    answer: list[Any] = ["two", [STREAM, piece(token(0)), DONE]]
    assert relayed(Written([["one", ReplicaGone], answer]), body).body == token(0) + "data: [DONE]\n\n"
    replicas = Written([["one", [STREAM, piece(token(0))], ReplicaGone], answer])
    seen = relayed(replicas, body)
    assert seen.body.startswith(token(0)) and "replica_lost" in seen.body and seen.whole
    assert len(replicas.asked) == 1


def test_what_may_have_been_done_is_not_asked_for_again() -> None:
    replicas = Written([["one", ReplicaGone], ["two", plain(201, {})]])
    seen = relayed(replicas, {"id": "s"}, "/v1/sessions")
    assert (seen.status, len(replicas.asked)) == (503, 1)
    replicas = Written([[ReplicaGone], refused_reply("draining"), ["two", plain(201, {})]])  # nobody was reached
    assert (relayed(replicas, {"id": "s"}, "/v1/sessions").status, len(replicas.asked)) == (201, 3)


def test_whole_replies_wait_for_a_replica_that_gives_them() -> None:
    replicas = Written([["one", ReplicaGone], refused_reply("session_elsewhere"), ["two", plain(200, {"a": 1})]])
    seen = relayed(replicas, SESSION | {"stream": False})
    assert (seen.status, seen.body) == (200, '{"a": 1}')


@pytest.mark.parametrize("status", [400, 404, 409, 429, 503])
def test_refusals_that_another_replica_would_make_too_are_passed_on(status: int) -> None:
    replicas = Written([["one", refused(status, "anything")]])
    assert (relayed(replicas).status, len(replicas.asked)) == (status, 1)


def test_patience_ends_with_what_was_said_last() -> None:
    assert relayed(Written([refused_reply("session_elsewhere")]), patience_s=0.3).status == 409
    replicas = Written([["one", [STREAM, piece(token(0))], ReplicaGone], refused_reply("draining")])
    seen = relayed(replicas, patience_s=0.3, keep_alive_s=0.1)
    assert seen.body.startswith(token(0)) and ": keep-alive\n\n" in seen.body and '"draining"' in seen.body
    assert seen.whole and seen.body.endswith("data: [DONE]\n\n")


def test_a_replica_that_computes_again_what_the_client_has_is_at_work() -> None:
    first = ["one", [STREAM, piece(token(0)), piece(token(1))], ReplicaGone]
    second = ["two", [STREAM, piece(token(0))], 0.3, [piece(token(1))], ReplicaGone]
    third = ["three", [STREAM, piece(token(0) + token(1))], [piece(token(2)), DONE]]
    seen = relayed(Written([first, second, third]), patience_s=0.2)
    assert seen.body == "".join(map(token, range(3))) + "data: [DONE]\n\n" and seen.whole


def test_a_client_is_given_a_sign_while_what_it_has_is_computed_again() -> None:
    first = ["one", [STREAM, piece(token(0)), piece(token(1))], ReplicaGone]
    second = ["two", [STREAM], 0.3, [piece(token(0))], [piece(token(1))], [piece(token(2)), DONE]]
    seen = relayed(Written([first, second]), keep_alive_s=0.2)
    assert seen.body == token(0) + token(1) + ": keep-alive\n\n" + token(2) + "data: [DONE]\n\n" and seen.whole


def test_a_client_that_hangs_up_is_no_longer_answered() -> None:
    replicas = Written([["one", [STREAM, piece(token(0))], 9.0]])
    seen = relayed(replicas, stays=lambda: not replicas.asked)
    assert replicas.closed == 1 and not any("[DONE]" in str(message) for message in seen.messages)


def test_what_one_replica_alone_knows_is_refused() -> None:
    replicas = Written([])
    for path, body, method in (
        ("/v1/responses", {"previous_response_id": "resp_1"}, "POST"),
        ("/v1/responses/resp_1", None, "GET"),
    ):
        seen = relayed(replicas, body, path, method)
        assert seen.status == 400 and '"unsupported"' in seen.body
    assert not replicas.asked


@pytest.mark.parametrize(
    ("path", "body", "route"),
    [
        ("/v1/sessions/talk/stream", None, "talk"),
        ("/v1/sessions", {"id": "talk"}, "talk"),
        ("/v1/chat/completions", {"ghostkv": {"session": "talk"}}, "talk"),
        ("/v1/chat/completions", {"ghostkv": []}, None),
        ("/v1/chat/completions", [], None),
        ("/v1/models", None, None),
    ],
)
def test_requests_of_a_session_have_one_route(path: str, body: Any, route: str | None) -> None:
    replicas = Written([["one", plain(200, {})]])
    relayed(replicas, body, path, "GET" if body is None else "POST")
    assert replicas.routes == [route if route is not None else replicas.asked[0].ticket]
