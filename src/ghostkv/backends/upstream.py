"""Another server's OpenAI-compatible API: requests, streams, retries, and its errors as our own kinds.

It knows HTTP and JSON. What a segment is, and what a reply's tokens mean, it does not know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
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
_SILENT_S = 600.0  # a stream, or a reply, that says nothing for so long has died; in a long line one waits for minutes
_WAITS = (0.25, 0.5, 1.0)  # seconds before each retry
_LONGEST_WAIT_S = 10.0  # that a Retry-After is heeded
_BUSY = (429, 503)  # statuses that say: later
_PASSING = (*_BUSY, 502, 504)  # statuses after which another try may do
_OURS = (401, 403, 404, 405)  # statuses that say this server is set up wrongly, not its client
_SHOWN = 500  # characters of an upstream's message that an error repeats


class _Failed(Exception):
    """One try that another may mend."""

    def __init__(self, error: GhostError, wait_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait_s = wait_s  # that the upstream asks for


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
        self.address = f"{base.scheme}://{base.netloc.decode()}"
        """For messages: without what may be secret in the URL."""
        self._client = httpx2.AsyncClient(
            base_url=base,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(_SILENT_S, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=128),
        )

    async def get(self, path: str) -> Json | None:
        """The object at `path`; None where there is none. Raises EngineFault if the server cannot be reached."""
        try:
            reply = await self._client.get(path)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if reply.status_code in _OURS[:2]:
            raise _refusal(reply, reply.content)
        try:
            found = reply.json() if reply.status_code == 200 else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    async def complete(self, body: Json) -> Json:
        """The whole reply of /v1/completions. Raises what `stream` does."""
        try:
            reply = await self._client.post("/v1/completions", json=body)
        except httpx2.TransportError as error:
            raise self._unreachable(error) from error
        if reply.status_code != 200:
            raise _refusal(reply, reply.content)
        return self._object(reply.content)

    async def stream(self, body: Json) -> AsyncGenerator[Json, None]:
        """The chunks of /v1/completions; closing it ends the request at the server. Tried again before the first only.

        Raises InvalidRequest, Overloaded or EngineFault.
        """
        for wait in (*_WAITS, None):
            begun = False
            try:
                async with aclosing(self._chunks(body | {"stream": True})) as chunks:
                    async for chunk in chunks:
                        begun = True
                        yield chunk
                return
            except _Failed as failed:
                if begun or wait is None:
                    raise failed.error from failed
                await asyncio.sleep(max(wait, failed.wait_s))

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def _chunks(self, body: Json) -> AsyncGenerator[Json, None]:
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as reply:
                if reply.status_code != 200:
                    refusal = _refusal(reply, await reply.aread())
                    if reply.status_code in _PASSING:
                        raise _Failed(refusal, min(_LONGEST_WAIT_S, _retry_after(reply.headers)))
                    raise refusal
                async for line in reply.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    if (data := line[5:].strip()) == "[DONE]":
                        break
                    yield self._object(data)
        except httpx2.ReadTimeout as error:
            raise EngineFault(f"the upstream {self.address} said nothing for {_SILENT_S:g} s") from error
        except httpx2.TransportError as error:
            raise _Failed(self._unreachable(error)) from error
        # Who reads asks for nothing more once the answer has ended.
        raise _Failed(EngineFault(f"the upstream {self.address} broke off before the end of an answer"))

    def _object(self, data: str | bytes) -> Json:
        try:
            found = json.loads(data)
        except ValueError as error:
            raise EngineFault(f"the upstream {self.address} sent no JSON") from error
        if not isinstance(found, dict):
            raise EngineFault(f"the upstream {self.address} sent JSON that is no object")
        if "error" in found:  # in a stream, where the status was sent already
            raise EngineFault(f"the upstream {self.address} failed: {_message(found)}")
        return found

    def _unreachable(self, error: httpx2.TransportError) -> EngineFault:
        return EngineFault(f"the upstream {self.address} cannot be reached: {error or type(error).__name__}")


def _refusal(reply: httpx2.Response, content: bytes) -> GhostError:
    """A status other than 200 as one of our errors."""
    status = reply.status_code
    try:
        said = _message(json.loads(content))
    except ValueError:
        said = content.decode("utf-8", "replace")[:_SHOWN]
    said = f"the upstream answered {status}: {said}"
    if status in _BUSY:
        return Overloaded(said, retry_after=max(1, round(_retry_after(reply.headers))))
    if status in _OURS or status >= 500:
        return EngineFault(said)
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
