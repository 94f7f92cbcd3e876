"""The command line of ghostkv which, on SIGUSR1, writes how many asyncio tasks there are to standard output.

What `/metrics` does not say of a server process, and its files under /proc do not either. Nothing else is changed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from types import FrameType

from ghostkv.cli import main


def tell(number: int, frame: FrameType | None) -> None:
    """Runs on the main thread, between two steps of the loop that runs there."""
    names = sorted(str(task.get_coro()).split(" at 0x")[0] for task in asyncio.all_tasks(asyncio.get_running_loop()))
    os.write(1, (json.dumps(names) + "\n").encode())


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    main()
