from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
before = set(sys.modules)
import ghostkv.residency
import ghostkv.protocol.render, ghostkv.protocol.segmenter, ghostkv.protocol.rules, ghostkv.protocol.tail
import ghostkv.protocol.reader, ghostkv.protocol.ledger
import ghostkv.protocol.archive, ghostkv.protocol.archive_format, ghostkv.protocol.recall
loaded = {name.split(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded & {"torch", "numpy", "numba", "asyncio", "socket", "random", "logging", "subprocess"}))
"""


def test_decisions_need_no_tensors_no_io_and_no_chance() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == ""
