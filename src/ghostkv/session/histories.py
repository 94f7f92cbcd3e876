"""What earlier messages left behind, for clients that send the whole conversation each time.

A memory is a pure function of the messages, so what is kept here only saves time: a server that has just started builds
the same. Each message is known by a digest of itself and of all before it, so an edited history matches a shorter chain
and forks there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock

from ghostkv.protocol.transition import Memory, read_message
from ghostkv.request import Message

_KEPT = 1024  # memories; those of one conversation share their storage

_Key = tuple[str, bytes, int]  # tenant, digest of the messages so far, payload budget


class Histories:
    """Memories by conversation and tenant, the least recently used forgotten first. Safe between threads."""

    def __init__(self, kept: int = _KEPT) -> None:
        """Keep at most `kept` memories."""
        self._kept = kept
        self._memories: OrderedDict[_Key, Memory] = OrderedDict()
        self._gate = Lock()

    def memory(self, messages: Sequence[Message], tenant: str, budget: int) -> Memory:
        """What is known after `messages`; payloads stay within `budget` bytes."""
        keys = [(tenant, digest, budget) for digest in digests(messages)]
        known, memory = self._longest(keys)
        for i in range(known, len(messages)):
            memory = read_message(memory, i, messages[i].role, messages[i].content, budget)
            self._keep(keys[i], memory)
        return memory

    def _longest(self, keys: Sequence[_Key]) -> tuple[int, Memory]:
        """How many of the first messages have been read before, and what they left."""
        with self._gate:
            for known in range(len(keys), 0, -1):
                found = self._memories.get(keys[known - 1])
                if found is not None:
                    self._memories.move_to_end(keys[known - 1])
                    return known, found
        return 0, Memory()

    def _keep(self, key: _Key, memory: Memory) -> None:
        with self._gate:
            self._memories[key] = memory
            self._memories.move_to_end(key)
            while len(self._memories) > self._kept:
                self._memories.popitem(last=False)


def digests(messages: Sequence[Message]) -> Iterator[bytes]:
    """SHA-256 over each message and everything before it."""
    chain = b""
    for message in messages:
        calls = (part for call in message.tool_calls for part in (call.id, call.name, call.arguments))
        texts = (message.role, message.content, message.tool_call_id, message.name, *calls)
        fields = [text.encode("utf-8", errors="surrogatepass") for text in texts]
        lengths = b"".join(len(field).to_bytes(8, "big") for field in fields)
        chain = hashlib.sha256(chain + len(fields).to_bytes(8, "big") + lengths + b"".join(fields)).digest()
        yield chain
