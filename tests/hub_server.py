"""A local fake of the Hugging Face Hub's HTTP interface: repositories of files, in memory."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has, and what it was asked for."""

    files: dict[str, bytes]  # of the one repository, org/small
    revisions: tuple[str, ...] = ("main", "v1")
    gated: bool = False
    cut_at: int = 0  # the first answer with weights breaks off after so many bytes
    asked: list[str] = field(default_factory=list)  # "METHOD path"
    ranges: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving_hub(hub: Hub) -> Iterator[Hub]:
    class Handler(_Handler):
        of = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    of: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, path = self.of, self.path.split("?")[0]
        hub.asked.append(f"{self.command} {path}")
        if not path.startswith(("/api/models/org/small", "/org/small/")):
            return self._refuse(401, "RepoNotFound")
        if hub.gated:
            return self._refuse(401, "GatedRepo")
        if match := re.fullmatch(r"/api/models/org/small(?:/revision/(.+))?", path):
            if (match[1] or "main") not in (*hub.revisions, COMMIT):
                return self._refuse(404, "RevisionNotFound")
            return self._json({"id": "org/small", "sha": COMMIT, "siblings": [{"rfilename": f} for f in hub.files]})
        if path == f"/api/models/org/small/tree/{COMMIT}":
            return self._json([_entry(name, content) for name, content in hub.files.items()])
        name = path.removeprefix(f"/org/small/resolve/{COMMIT}/")
        if name not in hub.files:
            return self._refuse(404, "EntryNotFound")
        return self._file(name, hub.files[name])

    def _file(self, name: str, content: bytes) -> None:
        first, wanted = 0, self.headers.get("Range")
        if wanted and self.command == "GET":
            self.of.ranges.append(f"{name} {wanted}")
            first = int(wanted.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.of.cut_at and name.endswith(".safetensors") and not first:
            self.wfile.write(content[: self.of.cut_at])
            self.of.cut_at, self.close_connection = 0, True
        else:
            self.wfile.write(content[first:])

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _entry(name: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(content).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": oid}
    if name.endswith(".safetensors"):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry
