"""Compiles a grammar in a process of its own first, which may die of it.

llguidance turns most bad grammars into errors, but not all: long chains of rules overflow its stack, which ends the
process, and a few small schemas keep it busy for minutes. So a grammar that nobody has compiled before is tried where
that hurts nobody, with limits on processor time, memory and stack. Not here: what a grammar means for a vocabulary.

Run as a script, this file is that process. It must not import ghostkv: it should start fast.
"""

from __future__ import annotations

import json
import resource
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

CPU_S = 1
"""Processor seconds of one grammar, or up to one more."""
_WALL_S = 30.0  # for a machine so busy that so little work takes that long
_MEMORY = 2 * 2**30  # bytes of address space
_STACK = 2**20  # bytes; threads of the server have at least twice as much


class Trial:
    """The process, started when it is first needed and again after it died. Safe to use from several threads.

    It ends with this object, and with the process that started it, however that ends.
    """

    def __init__(self, limits: dict[str, Any]) -> None:
        """`limits` are those of `llguidance.LLParserLimits`."""
        self._limits = json.dumps(limits)
        self._gate = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = _nothing

    def error(self, grammar: str) -> str:
        """Why `grammar` cannot be compiled within the limits; "" if it can. Blocks for some seconds at most."""
        with self._gate:
            process = self._process = self._process or self._started()
            try:
                return _asked(process, grammar)
            except (OSError, ValueError):  # a broken pipe, half a line: it died
                self._process = None
                self._end()
                return f"compiling it takes more than {CPU_S} s, or nests too deep, or needs too much memory"

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", __file__, self._limits]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for its parent; it ends when its input does
        )
        self._end = weakref.finalize(self, _ended, process)
        return process


def _nothing() -> None:
    pass


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def _asked(process: subprocess.Popen[bytes], grammar: str) -> str:
    """Raises OSError or ValueError where there is no answer."""
    if process.stdin is None or process.stdout is None:
        raise OSError("no pipes")
    data = json.dumps(grammar).encode() + b"\n"
    while data:
        data = data[process.stdin.write(data) or 0 :]
    answer = b""
    while not answer.endswith(b"\n"):
        ready, _, _ = select.select([process.stdout], [], [], _WALL_S)
        more = process.stdout.read(65536) if ready else b""
        if not more:
            raise OSError("no answer")
        answer += more
    return str(json.loads(answer))


def _serve(limits: dict[str, Any]) -> None:
    """Answer each line, a grammar as a JSON string, with what is wrong with it."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    tokenizer, bounds = LLTokenizer("byte"), LLParserLimits(**limits)
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        allowed = int(used.ru_utime + used.ru_stime) + 1 + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        matcher = LLMatcher(tokenizer, json.loads(line), log_level=0, limits=bounds)
        if not matcher.is_error():
            matcher.compute_bitmask()
        print(json.dumps(matcher.get_error()), flush=True)


def _main() -> None:
    for what, most in ((resource.RLIMIT_AS, _MEMORY), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(what, (most, most))
    threading.stack_size(_STACK)
    thread = threading.Thread(target=_serve, args=(json.loads(sys.argv[1]),))
    thread.start()
    thread.join()


if __name__ == "__main__":
    _main()
