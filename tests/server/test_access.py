"""Every request needs a key: what clients see of that, and what no key may be needed for."""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from starlette.types import Message, Receive, Scope, Send

from ghostkv.errors import InvariantViolation, NotAllowed
from ghostkv.request import Sampling
from ghostkv.server.access import ANYONE, Access, KeyCheck, Tenant, admin_of, check_owner, tenant_of
from ghostkv.server.app import build_app
from ghostkv.server.serving import Serving
from ghostkv.session.turn import Turn
from keys import access, bearer, client, key_of
from services import ScriptedBackend, Service, saying, scripted_worker, serving

BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
PREFLIGHT = {
    "origin": "https://app.example",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Service]:
    worker = scripted_worker(ScriptedBackend(saying("hello")))
    with serving(worker, access=access("alice", "bob", Tenant("root", admin=True))) as service:
        yield service


def basic(password: str, user: str = "any") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_clients_with_a_key_are_served_and_others_are_told(guarded: Service) -> None:
    for name in ("alice", "bob", "root"):
        with client(guarded, key_of(name)) as known:
            assert known.chat.completions.create(**BODY).choices[0].message.content == "hell"
    for key in ("none", key_of("alice") + "x", key_of("alice")[:-1], key_of("carol")):
        with client(guarded, key) as unknown:
            for ask in (unknown.models.list, lambda: unknown.chat.completions.create(**BODY, stream=True)):
                with pytest.raises(openai.AuthenticationError) as refused:
                    ask()
                assert refused.value.code == "invalid_api_key"
                assert refused.value.type == "invalid_request_error"
                assert key not in refused.value.message
                assert refused.value.response.headers["www-authenticate"].startswith("Bearer ")
                assert refused.value.response.headers["x-request-id"]


def routes_of(app: Any) -> Iterator[tuple[set[str], str]]:
    """Methods and path of every route, also of routers and applications inside."""
    for route in app.routes:
        inside = getattr(route, "original_router", None) or getattr(route, "app", None)
        if hasattr(inside, "routes"):
            yield from ((methods, getattr(route, "path", "") + path) for methods, path in routes_of(inside))
        else:
            yield getattr(route, "methods", None) or {"GET"}, route.path


def test_no_route_forgets_the_key(guarded: Service) -> None:
    app = build_app(Serving(guarded.worker, access=access("alice")))
    asked = [(method, re.sub(r"\{.*?\}", "x", path)) for methods, path in routes_of(app) for method in methods]
    assert ("POST", "/v1/chat/completions") in asked
    asked += [(method, path) for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS") for path in ("/", "/no/such")]
    asked += [("GET", path) for path in ("/metrics", "/docs", "/redoc", "/openapi.json", "/v1/models/", "/health/")]
    asked += [("GET", "//health"), ("GET", "/health/../v1/models"), ("GET", "/%68ealth/x"), ("POST", "/health")]
    for method, path in asked:
        reply = guarded.http.request(method, path, content=b"{}" if method == "POST" else b"")
        free = method in ("GET", "HEAD") and path in ("/health", "/live", "/ready")
        assert (reply.status_code != 401) if free else (reply.status_code == 401), (method, path)
        if not free and method != "HEAD":
            assert reply.json()["error"]["code"] == "invalid_api_key"
    assert guarded.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "values",
    [
        [],
        [""],
        ["Bearer"],
        [key_of("alice")],
        ["Bearer" + key_of("alice")],
        ["Token " + key_of("alice")],
        ["Bearer " + key_of("alice") + ","],
        ["Bearer " + key_of("alice") + " " + key_of("alice")],
        ["Bearer " + key_of("alice"), "Bearer " + key_of("alice")],
        ["Bearer \xff\xfe"],
        ["Basic"],
        ["Basic ?"],
        ["Basic " + base64.b64encode(key_of("alice").encode()).decode()],
        [basic("")],
        [basic("", user=key_of("alice"))],
        ["Bearer " + "x" * 8000],
    ],
)
def test_malformed_authorization_is_a_401(guarded: Service, values: list[str]) -> None:
    headers = [(b"authorization", value.encode("latin-1")) for value in values]
    reply = guarded.http.get("/v1/models", headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("value", ["Bearer {}", "bearer {}", "BEARER   {}"])
def test_how_a_key_may_be_written(guarded: Service, value: str) -> None:
    assert guarded.http.get("/v1/models", headers={"authorization": value.format(key_of("bob"))}).status_code == 200


def test_a_browser_asks_its_user_and_other_pages_cannot_use_what_it_learned(guarded: Service) -> None:
    asked = guarded.http.get("/", headers={"accept": "text/html,*/*"})
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    given = {"authorization": basic(key_of("alice"))}
    host = guarded.url.removeprefix("http://")
    assert guarded.http.get("/v1/models", headers=given).status_code == 200
    assert guarded.http.get("/v1/models", headers=given | {"origin": f"http://{host}"}).status_code == 200
    for origin in ("https://evil.example", "null", f"http://{host}.evil.example", f"http://evil.example/{host}"):
        assert guarded.http.get("/v1/models", headers=given | {"origin": origin}).status_code == 401


def test_each_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an early exit would save tells how many keys there are and which one matched."""
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counted(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return compare(known, given)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    three = access("a", "b", "c")
    for name, found in (("a", "a"), ("b", "b"), ("c", "c"), ("d", None)):
        compared.clear()
        key = three.find(key_of(name).encode())
        assert (None if key is None else key.tenant.name) == found
        assert compared == [key.digest for key in three.keys]


def test_no_key_is_kept_or_shown() -> None:
    made = access("alice")
    assert key_of("alice") not in repr(made)
    assert key_of("alice").encode() not in repr(made).encode()


def test_an_open_server_takes_any_key_and_none(scripted: Any) -> None:
    service = scripted(saying("hello"))
    assert service.http.get("/v1/models").status_code == 200
    assert service.http.get("/v1/models", headers={"authorization": "Bearer ,"}).status_code == 200
    assert service.http.options("/v1/chat/completions", headers=PREFLIGHT).status_code == 405
    assert "access-control-allow-origin" not in service.http.get("/v1/models", headers=PREFLIGHT).headers


def test_preflights_are_free_of_the_key_and_refusals_can_be_read(guarded: Service) -> None:
    for path in ("/v1/chat/completions", "/v1/models", "/no/such"):
        reply = guarded.http.options(path, headers=PREFLIGHT)
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == "*"
        assert "authorization" in reply.headers["access-control-allow-headers"]
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in reply.headers
    origin = {"origin": "https://app.example"}
    for headers, status in ((origin, 401), (origin | bearer("alice"), 200)):
        reply = guarded.http.get("/v1/models", headers=headers)
        assert reply.status_code == status
        assert reply.headers["access-control-allow-origin"] == "*"
        assert "x-request-id" in reply.headers["access-control-expose-headers"]


def test_only_declared_origins(scripted: Any) -> None:
    worker = scripted_worker(ScriptedBackend(saying("hello")))
    with serving(worker, access=access("alice", origins=("https://app.example",))) as service:
        assert service.http.options("/v1/models", headers=PREFLIGHT).status_code == 200
        other = service.http.options("/v1/models", headers=PREFLIGHT | {"origin": "https://evil.example"})
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers


def test_what_clients_send_splits_no_header_and_no_log_line(guarded: Service, caplog: pytest.LogCaptureFixture) -> None:
    sly = "a\u2028b\r\nx-evil: 1\x00\x1b[31m"
    for path, body in (("/v1/chat/completions", BODY | {"model": sly}), ("/v1/completions", {"model": sly, sly: 1})):
        reply = guarded.http.post(path, json=body, headers=bearer("alice"))
        assert reply.status_code in (400, 404)
        assert "x-evil" not in reply.headers
        assert reply.headers["content-type"] == "application/json"
    for path in ("/v1/models/%0d%0ax-evil:%201", "/%0d%0ax-evil:%201", "/v1/models/%ff%ed%a0%80", "/v1/models/%00"):
        reply = guarded.http.get(path, headers=bearer("alice"))
        assert reply.status_code == 404
        assert "x-evil" not in reply.headers
        assert reply.json()["error"]["message"]
    sent = [(b"authorization", bearer("alice")["authorization"].encode()), (b"x-request-id", b"a\xffb\tc" + b"d" * 500)]
    reply = guarded.http.get("/v1/models", headers=sent)
    assert reply.headers["x-request-id"] == "abc" + "d" * 125
    surrogate = b'{"model": "\\ud800", "messages": [], "\\udfff": 1}'
    reply = guarded.http.post("/v1/chat/completions", content=surrogate, headers=bearer("alice"))
    assert reply.status_code == 400
    assert not caplog.records


def scope(kind: str = "http", key: str | None = None, method: str = "POST") -> Scope:
    headers = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    made: dict[str, Any] = {"type": kind, "path": "/x", "headers": headers}
    return made if kind == "websocket" else made | {"method": method}


def passed(app: Any, asked: Scope, given: Access) -> list[Message]:
    """What comes back through the check."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": f"{asked['type']}.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(KeyCheck(app, given)(asked, receive, send))
    return sent


def test_a_websocket_needs_a_key_too() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept", "tenant": scope["state"]["tenant"]})

    given = access("alice")
    (refused,) = passed(app, scope("websocket"), given)
    assert refused["type"] == "websocket.close"
    (refused,) = passed(app, scope("websocket", "wrong"), given)
    assert refused["type"] == "websocket.close"
    (accepted,) = passed(app, scope("websocket", key_of("alice")), given)
    assert accepted == {"type": "websocket.accept", "tenant": Tenant("alice")}
    (accepted,) = passed(app, scope("websocket"), Access())
    assert accepted["tenant"] == ANYONE


def test_a_route_that_says_nobody_or_somebody_else_is_stopped() -> None:
    """A turn without its tenant would share the cache of all others that were forgotten."""

    def turn(tenant: Tenant) -> Turn:
        return Turn("t", Sampling(), 1, tenant=tenant.name, share_group=tenant.share_group)

    alice, grouped = Tenant("alice"), Tenant("bob", share_group="team")

    def checks(asked: Scope, given: Access, *owners: Tenant) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            check_owner([turn(owner) for owner in owners])

        passed(app, asked, given)

    keys = access(alice, grouped)
    checks(scope(key=key_of("alice")), keys, alice, alice)
    checks(scope(key=key_of("bob")), keys, grouped)
    checks(scope(), Access(), ANYONE)
    for key, owner in (("alice", ANYONE), ("alice", grouped), ("bob", Tenant("bob")), ("bob", Tenant("x", "team"))):
        with pytest.raises(InvariantViolation):
            checks(scope(key=key_of(key)), keys, owner)
        with pytest.raises(InvariantViolation):  # also from a task that the request has started
            asked = keys.find(key_of(key).encode())
            assert asked is not None
            checks(scope(key=key_of(key)), keys, asked.tenant, owner)
    check_owner([turn(alice)])  # outside of any request


def test_who_asks_and_who_may_see() -> None:
    seen: list[Tenant] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import HTTPConnection

        seen.append(tenant_of(HTTPConnection(scope)))
        admin_of(HTTPConnection(scope))

    keys = access("alice", Tenant("root", admin=True))
    with pytest.raises(NotAllowed):
        passed(app, scope(key=key_of("alice"), method="GET"), keys)
    passed(app, scope(key=key_of("root"), method="GET"), keys)
    passed(app, scope(method="GET"), Access())
    assert seen == [Tenant("alice"), Tenant("root", admin=True), ANYONE]
    alice, root = seen[:2]
    assert alice.may_see("alice") and not alice.may_see("root") and not alice.may_see("")
    assert root.may_see("alice") and root.may_see("root") and ANYONE.may_see("")


def test_aliases_hide_names_and_tell_tenants_apart() -> None:
    names = [f"tenant-{number}" for number in range(500)]
    one, other = access("a"), access("a")
    aliases = [one.alias(name) for name in names]
    assert len(set(aliases)) == len(names)
    assert aliases == [one.alias(name) for name in names]
    assert not set(aliases) & {other.alias(name) for name in names}  # another salt
    assert all(re.fullmatch("[0-9a-f]{12}", alias) for alias in aliases)
