"""The segment table and the trace say who decoded a segment, and nothing where there is only one worker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ghostkv.request import SegmentUsage
from ghostkv.session.turn import SegmentRecord
from ghostkv.tables import segment_table
from ghostkv.trace import Footing, Trace

PLAIN = SegmentRecord(0, SegmentUsage(20, 0, 3, 22, 0.0, 0.1, 0.1), None, 0)
PLACED = replace(PLAIN, index=1, worker="m:float32", reason="density 0.71: the strongest with room")


@pytest.mark.parametrize(("segment", "said"), [(PLAIN, False), (PLACED, True)])
def test_worker_and_reason_are_shown_only_where_there_is_a_choice(
    segment: SegmentRecord, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Trace(segments=[segment]).write(tmp_path / "t", Footing("m", "0", 1, 1, 1))
    line = json.loads((tmp_path / "t").read_text().splitlines()[-1])
    assert (line.get("worker"), line.get("reason")) == ((segment.worker, segment.reason) if said else (None, None))
    assert ("worker" in line, "density" in line) == (said, True)
    Console(width=300).print(segment_table([segment]))
    shown = capsys.readouterr().out
    assert ("chosen for" in shown, PLACED.worker in shown, PLACED.reason in shown) == (said, said, said)
