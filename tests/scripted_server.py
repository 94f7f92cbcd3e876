"""A server process over a scripted engine: `python scripted_server.py '{"seconds": 0.01, "drain_s": 5}'`.

It prints its address. The script says "x" for ever; after `breaks_after` tokens the engine dies. With `says` it says
that, and `then` where the prompt has a tool's result. With a `store` its files may take `file_bytes` each: what is
written beyond fails as on a full disk.
"""

from __future__ import annotations

import json
import resource
import socket
import sys

from ghostkv.config import EngineConfig, ServerConfig
from ghostkv.errors import GhostError
from ghostkv.server.access import Access
from ghostkv.server.serve import listen, serve
from ghostkv.session.stores import open_store
from services import ScriptedBackend, answering, saying, scripted_worker


def main(
    seconds: float = 0.0,
    drain_s: float = 10.0,
    breaks_after: int = 10**9,
    send_buffer: int = 0,
    store: str = "",
    file_bytes: int = 0,
    says: str = "",
    then: str = "",
    lease_s: float | None = None,
    resume_s: float = 30.0,
) -> None:
    spoken = 0

    def script(history: tuple[int, ...], draw: object) -> int:
        nonlocal spoken
        spoken += 1
        if spoken > breaks_after:
            raise RuntimeError("the model broke")
        return ord("x")

    speaker = saying(says) if says else script
    if then:
        speaker = answering(lambda prompt: then if "<tool_response>" in prompt else says)
    worker = scripted_worker(ScriptedBackend(speaker, seconds=seconds), EngineConfig())
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    kept = open_store(store, lease_s=lease_s) if store else None
    with listen("127.0.0.1", 0) as bound:
        if send_buffer:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        config = ServerConfig(drain_s=drain_s, resume_s=resume_s)
        serve(worker, bound, Access(), config=config, store=kept, ready=lambda: print(url, flush=True))
    if kept is not None:
        kept.close()


if __name__ == "__main__":
    try:
        main(**json.loads(sys.argv[1]))
    except GhostError as error:  # as the command line does
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(1)
