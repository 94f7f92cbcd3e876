"""Who asks: API keys, the tenants that they stand for, and the check that every request passes.

Only SHA-256 digests of keys are held. What a tenant may do with sessions, metrics or the page is their own business:
they ask `tenant_of`. Overload of the whole server is not this module's concern, a key's own limits are.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from ghostkv.errors import GhostError, InvalidKey, InvariantViolation, NotAllowed, RateLimited
from ghostkv.server.errors import error_body, headers_of
from ghostkv.server.rates import Meter
from ghostkv.session.turn import Turn

_FREE = frozenset({"/health", "/live", "/ready"})
"""Asked by probes, which have no key and learn nothing but whether the server lives."""
_ALIAS_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whom requests belong to. Tenants share nothing, but for the cached blocks of those in one share group."""

    name: str = ""
    share_group: str = ""  # "": its blocks are its own
    admin: bool = False  # sees the sessions and the numbers of all tenants

    def may_see(self, owner: str) -> bool:
        """Whether what belongs to the tenant `owner` may be shown. Answer a no as if the thing did not exist."""
        return self.admin or self.name == owner


ANYONE = Tenant(admin=True)
"""The tenant of all requests where no keys are configured."""


@dataclass(frozen=True, slots=True)
class Key:
    """One API key."""

    digest: bytes  # SHA-256
    tenant: Tenant
    meter: Meter = field(default_factory=Meter)


_caller: ContextVar[Key | None] = ContextVar("caller", default=None)
"""The key of the request that a task works for; None for work that no request asked for, or where none is needed."""


@dataclass(frozen=True, slots=True)
class Access:
    """The keys of a server; without any it is open, and all who reach it are one tenant."""

    keys: tuple[Key, ...] = ()
    origins: tuple[str, ...] = ()  # of web pages that may ask besides the server's own
    salt: bytes = field(default_factory=lambda: secrets.token_bytes(16), repr=False)  # of aliases

    @property
    def cors_origins(self) -> tuple[str, ...]:
        """Origins whose pages a browser lets in.

        By default all where a key is needed, which a page has to bring; none where it is not: else any page that the
        user visits could use the server.
        """
        return self.origins or (("*",) if self.keys else ())

    def find(self, key: bytes) -> Key | None:
        """The key. Compares with all of them, each in constant time, so that time does not tell how close one was."""
        digest, found = hashlib.sha256(key).digest(), None
        for known in self.keys:
            if hmac.compare_digest(known.digest, digest):
                found = known
        return found

    def alias(self, tenant: str) -> str:
        """What a tenant is called where others may look: stable while the salt is, and does not tell the name."""
        return hmac.new(self.salt, tenant.encode(), hashlib.sha256).hexdigest()[:_ALIAS_DIGITS]


def tenant_of(connection: HTTPConnection) -> Tenant:
    """The tenant of a request or websocket. Raises InvariantViolation on a path that is free of the key."""
    tenant = connection.scope.get("state", {}).get("tenant")
    if not isinstance(tenant, Tenant):
        raise InvariantViolation("this request has passed no key check, so it belongs to nobody")
    return tenant


def admin_of(connection: HTTPConnection) -> Tenant:
    """The tenant, for what only an admin key may see. Raises NotAllowed."""
    tenant = tenant_of(connection)
    if not tenant.admin:
        raise NotAllowed("this needs an admin key")
    return tenant


def caller_meter() -> Meter | None:
    """The meter of the key for which this task works, if there is one."""
    key = _caller.get()
    return None if key is None else key.meter


def act_for(access: Access, turn: Turn) -> None:
    """From here on this task works for the first key of the turn's tenant, whose limits its tokens count against.

    Which of several keys asked is not kept. Without any, as where the tenant is gone from the file, nothing is counted.
    """
    owner = (turn.tenant, turn.share_group)
    _caller.set(next((key for key in access.keys if (key.tenant.name, key.tenant.share_group) == owner), None))


def check_owner(turns: Iterable[Turn]) -> None:
    """Raises InvariantViolation for a turn that is not the caller's: of a route that forgot to say whose it is."""
    key = _caller.get()
    if key is None:
        return
    owners = {(turn.tenant, turn.share_group) for turn in turns}
    if owners - {(key.tenant.name, key.tenant.share_group)}:
        raise InvariantViolation("a turn does not belong to the tenant that asked for it")


class KeyCheck:
    """ASGI middleware: every request and websocket but those of `_FREE` needs a key, and a POST a place in its limits.

    Put it outside all routes and inside CORS, whose preflights come without a key.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with the tenant in the request's state, or refuse."""
        if scope["type"] not in ("http", "websocket") or _free(scope):
            await self._app(scope, receive, send)
        elif not self._access.keys:
            scope.setdefault("state", {})["tenant"] = ANYONE
            await self._app(scope, receive, send)
        else:
            await self._checked(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = _given(scope)
        key = None if given is None else self._access.find(given)
        if key is None:
            await _unknown(scope, receive, send, presented=given is not None)
            return
        scope.setdefault("state", {})["tenant"] = key.tenant
        _caller.set(key)
        if scope["type"] == "websocket" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            began = key.meter.enter(time.monotonic())
        except RateLimited as error:
            await _refuse(scope, receive, send, error)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            key.meter.leave(began, time.monotonic())


def _free(scope: Scope) -> bool:
    """Probes, and peers, whose requests are sealed with a secret of their own."""
    if scope["type"] == "http" and scope["path"].startswith("/peer/"):
        return True
    return scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] in _FREE


def _given(scope: Scope) -> bytes | None:
    """The key of a well-formed `Authorization` header: Bearer, or the password of Basic, which a browser asks for."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, rest = values[0].strip().partition(b" ")
    rest = rest.strip(b" ")
    if scheme.lower() == b"bearer":
        return rest or None
    if scheme.lower() == b"basic" and _own_page(scope):
        try:
            return base64.b64decode(rest, validate=True).partition(b":")[2] or None
        except ValueError:
            return None
    return None


def _own_page(scope: Scope) -> bool:
    """Whether no page of another origin asks. A browser adds Basic by itself, also where such a page had it ask."""
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


async def _unknown(scope: Scope, receive: Receive, send: Send, *, presented: bool) -> None:
    """401, or a websocket that is closed before it opens."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": "an API key is needed"})
        return
    # OpenAI's own words first: it is by them that litellm tells a wrong key from a wrong request.
    wrong = "Incorrect API key provided: it is not known here"
    said = wrong if presented else "no API key was given: send Authorization: Bearer KEY"
    challenge = 'Bearer realm="ghostkv"' + (', error="invalid_token"' if presented else "")
    if scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", ""):
        challenge = 'Basic realm="ghostkv: the API key is the password"'  # has a browser ask its user
    await _refuse(scope, receive, send, InvalidKey(said), {"www-authenticate": challenge})


async def _refuse(
    scope: Scope, receive: Receive, send: Send, error: GhostError, headers: Mapping[str, str] | None = None
) -> None:
    scope.setdefault("state", {})["error_code"] = error.code  # for metrics and log
    response = JSONResponse(error_body(error), error.http_status, {**headers_of(error), **(headers or {})})
    await response(scope, receive, send)
