"""Tables for the terminal. Formatting only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table

from ghostkv.session.turn import SegmentRecord

if TYPE_CHECKING:  # both bring torch
    from ghostkv.model.inspect import Inspection
    from ghostkv.model.selfcheck import SelfCheck

_COUNTS = ("prompt", "cached", "carried", "output")
_TIMES = ("render", "prefill", "decode", "extract")
_SEGMENT_COLUMNS = ("#", *_COUNTS, "boundary", "live KV", *_TIMES)
_UNITS = ("B", "KiB", "MiB", "GiB")


def size(count: float) -> str:
    """Bytes for people, e.g. "12.0 MiB"."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.1f} {_UNITS[unit]}" if unit else f"{count:.0f} B"


def segment_table(segments: Sequence[SegmentRecord]) -> Table:
    """One row for each segment, and their sums."""
    table = Table(
        title="segments (tokens; MiB; milliseconds)",
        title_justify="left",
        show_footer=True,
        box=SIMPLE,
        padding=0,
    )
    rows = [_segment_row(segment) for segment in segments]
    sums = ["sum", *(str(total) for total in map(sum, zip(*map(_counts, segments), strict=True)))]
    sums += ["", "", *(_time(total) for total in map(sum, zip(*map(_milliseconds, segments), strict=True)))]
    for name, total in zip(_SEGMENT_COLUMNS, sums, strict=True):
        table.add_column(name, total, justify="left" if name == "boundary" else "right")
    if any(segment.worker for segment in segments):
        rows = [[*row, segment.worker, segment.reason] for row, segment in zip(rows, segments, strict=True)]
        table.add_column("worker")
        table.add_column("chosen for")
    for row in rows:
        table.add_row(*row)
    return table


def check_table(report: SelfCheck) -> Table:
    """What the self-check found: one row for each product shape."""
    table = Table(title="matrix products whose rows do not depend on their batch", title_justify="left")
    for name in ("product", "shape", "dtype", "threads", "rows compared", "row counts left out", "plan"):
        table.add_column(name)
    for check in report.checks:
        left_out = ", ".join(f"{count} ({rows} rows differ)" for count, rows in sorted(check.differing.items()))
        plan = f"tiles of {check.plan.tile} rows" if check.plan.tile else f"{len(check.plan.counts)} row counts"
        shape = f"{check.outputs} x {check.inputs}"
        table.add_row(check.name, shape, check.dtype, str(check.threads), str(check.compared), left_out or "none", plan)
    return table


def inspection_table(found: Inspection) -> Table:
    """A model's figures."""
    shape = found.shape
    return _pairs(
        [
            ("model", found.name),
            ("file", str(found.path)),
            ("digest", found.digest),
            ("family", shape.family),
            ("parameters", f"{found.parameters:,}"),
            ("layers, hidden, intermediate", f"{shape.layers}, {shape.hidden}, {shape.intermediate}"),
            ("query heads, KV heads, head size", f"{shape.heads}, {shape.kv_heads}, {shape.head_size}"),
            ("vocabulary", f"{shape.vocab:,}"),
            ("context", f"{shape.context:,} tokens"),
            ("KV per token, bfloat16", f"{found.kv_bytes_per_token:,} bytes"),
            ("KV per token, float32", f"{found.kv_bytes_per_token_float32:,} bytes"),
            ("KV per token, int8", f"{found.kv_bytes_per_token_int8:,} bytes"),
            ("weights in bfloat16", size(found.weight_bytes)),
            ("opened in", f"{found.open_s:.2f} s"),
            ("weights loaded in", f"{found.load_s:.2f} s"),
            ("peak resident memory", size(found.peak_rss_bytes)),
        ]
    )


Measured = tuple[int, float, float, float, float, str]
"""Batch size, tokens/s, seconds until all have a token, seconds of a decode step, its share of the roofline, limit."""


def bench_table(rows: Iterable[Measured]) -> Table:
    """How fast each batch size is, and how much of what memory or compute allows that is."""
    table = Table(title="engine: medians; roofline: a decode step's least time over its time", title_justify="left")
    for name in ("batch", "tokens/s", "TTFT s", "step ms", "roofline", "limit"):
        table.add_column(name, justify="right")
    for sequences, rate, first_s, step_s, share, limit in rows:
        table.add_row(str(sequences), f"{rate:.1f}", f"{first_s:.3f}", f"{1e3 * step_s:.1f}", f"{share:.0%}", limit)
    return table


def shares_table(parts: Sequence[str], rows: Iterable[tuple[int, Sequence[float]]]) -> Table:
    """Batch size and the share of wall time in each of `parts`."""
    table = Table(title="shares of wall time", title_justify="left")
    for name in ("batch", *parts):
        table.add_column(name, justify="right")
    for sequences, shares in rows:
        table.add_row(str(sequences), *(f"{share:.1%}" for share in shares))
    return table


def model_table(rows: Iterable[tuple[str, str, str, str]]) -> Table:
    """Name, package, licence and state of the models known by name."""
    table = Table("name", "package", "licence", "state")
    for row in rows:
        table.add_row(*row)
    return table


def _pairs(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    return table


def _segment_row(segment: SegmentRecord) -> list[str]:
    boundary = "end" if segment.boundary is None else segment.boundary.kind
    live = f"{segment.live_kv_bytes / 2**20:.1f}"
    times = map(_time, _milliseconds(segment))
    return [str(segment.index), *map(str, _counts(segment)), boundary, live, *times]


def _counts(segment: SegmentRecord) -> tuple[int, ...]:
    usage = segment.usage
    carried = segment.tail + segment.state + segment.recalled
    return (usage.prompt_tokens, usage.cached_tokens, carried, usage.generated_tokens)


def _milliseconds(segment: SegmentRecord) -> tuple[float, ...]:
    usage, phases = segment.usage, segment.phases
    render, extract = phases.recall + phases.render, phases.extract + phases.merge
    seconds = (render, usage.prefill_s, usage.decode_s, extract)
    return tuple(1000 * value for value in seconds)


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.1f}" if milliseconds < 100 else f"{milliseconds:.0f}"
