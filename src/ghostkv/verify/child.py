"""The same requests in another process with another PYTHONHASHSEED, and that process: `python -m ghostkv.verify.child`.

Parent and child exchange one JSON object each way over pipes; turns travel as a capsule's parts do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ghostkv.config import EngineConfig
from ghostkv.errors import EngineFault
from ghostkv.session.plain import decode, encode
from ghostkv.session.turn import Turn
from ghostkv.verify.reference import Reference
from ghostkv.verify.rig import Rig
from ghostkv.verify.seen import Seen

_SEED = "4711"


def other_process(rig: Rig, references: Sequence[Reference]) -> tuple[list[Seen], str]:
    """What another process sees of them. Raises EngineFault where it ends with an error."""
    turns = [b64encode(encode(reference.turn)).decode() for reference in references]
    asked = {"path": str(rig.path), "config": asdict(rig.config), "turns": turns}
    environment = os.environ | {"PYTHONHASHSEED": _SEED}
    done = subprocess.run(
        [sys.executable, "-m", "ghostkv.verify.child"],
        input=json.dumps(asked).encode(),
        capture_output=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise EngineFault(f"the other process ended with {done.returncode}: {done.stderr.decode()[-400:]}")
    return [_seen(told) for told in json.loads(done.stdout)], f"PYTHONHASHSEED={_SEED}, the model loaded again"


def _seen(told: dict[str, Any]) -> Seen:
    logits = {(segment, length): row for segment, length, row in told["logits"]}
    return Seen(decode(b64decode(told["tokens"])), told["text"], (logits,))


def main() -> None:
    """The child."""
    asked = json.load(sys.stdin)
    rig = Rig(Path(asked["path"]), EngineConfig(**asked["config"]), lambda _: None)
    told = []
    for packed in asked["turns"]:
        turn: Turn = decode(b64decode(packed))
        with rig.opened() as engine:
            seen, _ = engine.seen(turn)
        logits = [(*place, row) for place, row in seen.logits[0].items()]
        told.append({"tokens": b64encode(encode(seen.tokens)).decode(), "text": seen.text, "logits": logits})
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
