"""Another server's OpenAI-compatible API: requests, streams, and its errors as our own kinds.

It knows HTTP and JSON. What a segment is, what a reply's tokens mean, and whether to try again, it does not know.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from enum import StrEnum
from typing import Any

import httpx2

from ghostkv.errors import (
    ConfigError,
    ContextLengthExceeded,
    EngineFault,
    GhostError,
    InvalidRequest,
    Overloaded,
)

Json = dict[str, Any]

_CONNECT_S = 10.0
_CHECK_S = 10.0  # that a health check may take
_SILENT_S = 600.0  # a stream, or a reply, that says nothing for so long has died; in a long line one waits for minutes
_BUSY = (429, 503)  # statuses that say: later
_PASSING = (*_BUSY, 502, 504)  # statuses after which another try may do
_OURS = (401, 403, 404, 405)  # statuses that say this server is set up wrongly, not its client
_NO_CONNECTION = (httpx2.ConnectError, httpx2.ConnectTimeout)
_SHOWN = 500  # characters of an upstream's message that an error repeats


class Failure(StrEnum):
    """What a try that failed says of the upstream. Another upstream may mend any of them."""

    AWAY = "away"  # nobody answers there
    BUSY = "busy"  # it says: later
    BROKE = "broke"  # it took the request and is gone
    SILENT = "silent"  # it took the request and says nothing
    FAULT = "fault"  # it fails with this request, or is set up wrongly: asked again it would say the same


class FailedTry(Exception):
    """One try of a request that failed, through no fault of the request that is known."""

    def __init__(self, error: GhostError, kind: Failure, wait_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        """As the request's client is told of it where no other try is made."""
        self.kind = kind
        self.wait_s = wait_s
        """That the upstream asks for."""


class Upstream:
    """One server. All its methods belong to one event loop."""

    def __init__(self, url: str, key: str = "") -> None:
        """`url` with or without the `/v1` at its end. Raises ConfigError for what is no HTTP address."""
        try:
            base = httpx2.URL(url.rstrip("/").removesuffix("/v1"))
        except httpx2.InvalidURL as error:
            raise ConfigError(f"the upstream {url!r} is no URL: {error}") from error
        if base.scheme not in ("http", "https") or not base.host:
            raise ConfigError(f"the upstream {url!r} is no URL such as http://127.0.0.1:8000/v1")
        self.address = f"{base.scheme}://{base.netloc.decode()}{base.path.rstrip('/')}"
        """For messages: without what may be secret in the URL, name and password and query."""
        self._client = httpx2.AsyncClient(
            base_url=base,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(_SILENT_S, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=128),
        )

    async def get(self, path: str) -> Json | None:
        """The object at `path`; None where there is none. Raises FailedTry."""
        try:
            reply = await self._client.get(path)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if reply.status_code in (*_OURS[:2], *_PASSING):
            raise self._refusal(reply, reply.content)
        try:
            found = reply.json() if reply.status_code == 200 else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    async def check(self) -> None:
        """Raises FailedTry if it would not serve requests, by /health or, where there is none, /v1/models."""
        for path in ("/health", "/v1/models"):
            try:
                reply = await self._client.get(path, timeout=_CHECK_S)
            except httpx2.TransportError as error:
                raise self._unreachable(error) from error
            if reply.status_code not in _OURS:
                break
        if reply.status_code != 200:
            raise self._refusal(reply, reply.content)

    async def complete(self, body: Json) -> Json:
        """The whole reply of /v1/completions. Raises what `stream` does."""
        try:
            reply = await self._client.post("/v1/completions", json=body)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if reply.status_code != 200:
            raise self._refusal(reply, reply.content)
        return self._object(reply.content)

    async def stream(self, body: Json) -> AsyncGenerator[Json, None]:
        """The chunks of /v1/completions; closing it ends the request at the server.

        Raises InvalidRequest, or FailedTry, also for a stream that ends before the answer.
        """
        try:
            async with self._client.stream("POST", "/v1/completions", json=body | {"stream": True}) as reply:
                if reply.status_code != 200:
                    raise self._refusal(reply, await reply.aread())
                async for line in reply.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    if (data := line[5:].strip()) == "[DONE]":
                        break
                    yield self._object(data)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        # Who reads asks for nothing more once the answer has ended.
        raise FailedTry(
            EngineFault(f"the upstream {self.address} broke off before the end of an answer"), Failure.BROKE
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    def _object(self, data: str | bytes) -> Json:
        try:
            found = json.loads(data)
        except ValueError as error:
            raise self._fault("sent no JSON") from error
        if not isinstance(found, dict):
            raise self._fault("sent JSON that is no object")
        if "error" in found:  # in a stream, where the status was sent already
            raise self._fault(f"failed: {_message(found)}")
        return found

    def _fault(self, what: str) -> FailedTry:
        return FailedTry(EngineFault(f"the upstream {self.address} {what}"), Failure.FAULT)

    def _unreachable(self, error: httpx2.TransportError) -> FailedTry:
        if isinstance(error, httpx2.ReadTimeout):
            return FailedTry(EngineFault(f"the upstream {self.address} said nothing for too long"), Failure.SILENT)
        kind = Failure.AWAY if isinstance(error, _NO_CONNECTION) else Failure.BROKE
        why = error or type(error).__name__
        return FailedTry(EngineFault(f"the upstream {self.address} cannot be reached: {why}"), kind)

    def _refusal(self, reply: httpx2.Response, content: bytes) -> InvalidRequest | FailedTry:
        """A status other than 200 as one of our errors."""
        status = reply.status_code
        try:
            said = _message(json.loads(content))
        except ValueError:
            said = content.decode("utf-8", "replace")[:_SHOWN]
        said = f"the upstream {self.address} answered {status}: {said}"
        if status in _PASSING:
            wait_s = _retry_after(reply.headers)
            busy = Overloaded(said, retry_after=max(1, round(wait_s))) if status in _BUSY else EngineFault(said)
            return FailedTry(busy, Failure.BUSY, wait_s)
        if status in _OURS or status >= 500:
            return FailedTry(EngineFault(said), Failure.FAULT)
        lower = said.lower()
        if "context" in lower and ("length" in lower or "size" in lower or "window" in lower):
            return ContextLengthExceeded(f"context_length_exceeded: {said}", param="prompt")
        return InvalidRequest(said)


def _message(body: object) -> str:
    """What an error body says, in any of the forms that servers write."""
    if isinstance(body, dict):
        for name in ("error", "message", "detail"):
            if name in body:
                return _message(body[name])
    return (body if isinstance(body, str) else json.dumps(body))[:_SHOWN]


def _retry_after(headers: Mapping[str, str]) -> float:
    """Seconds; 0 where the header is missing or a date."""
    try:
        return max(0.0, float(headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
