"""What a client has of a stream, so that the same stream from another replica can be taken up there."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from ghostkv.errors import Interrupted

_FRAME = re.compile(rb".+?\n\n", re.DOTALL)
_END = (b'"choices":[]', b'"finish_reason":"')  # in a stream's last frames: counts there tell of the run, not the text
_ERROR = b'\ndata: {"error":'
_DIGEST_BYTES = 8


class Said:
    """Of one reply. Each piece that a replica gives ends where a frame does."""

    def __init__(self) -> None:
        self.begun = False
        """The client has the head of a stream."""
        self._digests: list[bytes] = []  # of what the client has, comments aside
        self._at = 0  # frames that this replica has given

    @property
    def frames(self) -> int:
        """How many the client has."""
        return len(self._digests)

    def again(self) -> None:
        """Another replica begins, from the beginning."""
        self._at = 0

    def new(self, piece: bytes) -> tuple[bytes, dict[str, Any] | None]:
        """What the client has not got yet of a piece, up to an error that it says, and that error.

        Raises Interrupted where it differs from what the client has got. Not compared are the first frame, which may
        name tool calls, and the last ones.
        """
        fresh: list[bytes] = []
        for frame in _FRAME.findall(piece):
            if frame.startswith(b":"):
                if self._at >= self.frames:
                    fresh.append(frame)
                continue
            if (at := (b"\n" + frame).find(_ERROR)) >= 0:
                error: dict[str, Any] = json.loads(frame[at + len(_ERROR) - len(b'{"error":') - 1 :])["error"]
                return b"".join(fresh), error
            digest = hashlib.blake2b(frame, digest_size=_DIGEST_BYTES).digest()
            if self._at >= self.frames:
                self._digests.append(digest)
                fresh.append(frame)
            elif digest != self._digests[self._at] and self._at and not any(end in frame for end in _END):
                raise Interrupted("another replica went on with other tokens than those that were sent: ask again")
            self._at += 1
        return b"".join(fresh), None
