"""A server is a group that ends with whoever started it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ghostkv.pressure.process import Launch, NotStarted, ServerProcess, cpu_seconds, free_port, resident_bytes
from services import until

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
STARTER = """
import sys, time
from ghostkv.pressure.process import Launch, ServerProcess
server = ServerProcess(Launch((sys.executable, "-S", "-c", sys.argv[1]), 1))
while len(server.tree()) < 2:
    time.sleep(0.01)
print(*server.tree(), flush=True)
time.sleep(600)
"""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_group_does_not_outlive_a_starter_that_is_killed() -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, PARENT], stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pids = [int(word) for word in starter.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(_alive, pids))
    starter.send_signal(signal.SIGKILL)
    starter.communicate()
    assert until(lambda: not any(map(_alive, pids)))


def test_leaving_ends_parents_and_children_that_ignore_a_signal() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PARENT.replace(
        '"import time;', '"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);'
    )
    with ServerProcess(Launch((sys.executable, "-S", "-c", deaf), 1), stop_s=0.2) as server:
        assert until(lambda: len(server.tree()) == 2)
        pids = server.tree()
        assert resident_bytes(pids) > 2**20
        assert cpu_seconds(pids) >= 0
    assert until(lambda: not any(map(_alive, pids)))


def test_a_server_that_ends_or_never_answers_is_named_with_its_last_error(tmp_path: Path) -> None:
    dies = f"import sys; print('ValueError: {tmp_path}/model is broken\\nRuntimeError: see above'); sys.exit(3)"
    with (
        ServerProcess(Launch((sys.executable, "-S", "-c", dies), free_port())) as server,
        pytest.raises(NotStarted, match=r"exit code 3: ValueError: \.\.\./model is broken"),
    ):
        asyncio.run(server.ready())
    mute = Launch((sys.executable, "-S", "-c", "import time; time.sleep(600)"), free_port(), patience_s=0.1)
    with ServerProcess(mute) as server, pytest.raises(NotStarted, match="no answer within 0 s: it said nothing"):
        asyncio.run(server.ready())
