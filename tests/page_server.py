"""A server with the page in a process of its own, as NiceGUI lives once in a process: `python page_server.py JSON`.

JSON: `keys` (file of API keys), `name` (of the model), `blocks`. The engine is scripted: it writes the same paragraph
over and over, a token in a few milliseconds. The URL is printed; SIGTERM ends it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from ghostkv.config import ServerConfig
from ghostkv.page.live import Live
from ghostkv.page.mount import mount_page
from ghostkv.server.key_file import read_access
from ghostkv.server.serve import listen, serve
from services import ScriptedBackend, saying, scripted_worker

TEXT = "The reactor of Ganymede Base held 412 kelvin. Captain Mira Voss wrote it down, twice, and went on.\n\n" * 40


def main() -> None:
    asked = json.loads(sys.argv[1])
    live = Live()
    backend = ScriptedBackend(saying(TEXT), blocks=asked.get("blocks", 64), seconds=0.005)
    backend.engine._trace = partial(live.stepped, 0)
    worker = replace(scripted_worker(backend), name=asked.get("name", "scripted"))
    bound = listen("127.0.0.1", 0)
    keys = asked.get("keys")
    access = read_access(Path(keys) if keys else None, {})
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    serve(
        worker,
        bound,
        access,
        config=ServerConfig(drain_s=0.5),
        observers=(live,),
        beside=lambda app, serving: mount_page(app, serving, live),
        ready=lambda: print(url, flush=True),
    )


if __name__ == "__main__":
    main()
