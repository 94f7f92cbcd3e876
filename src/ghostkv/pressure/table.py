"""Rows as tables for the terminal, one for each preset. Formatting only; quality stands beside every speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from ghostkv.pressure.measures import TIMEOUTS
from ghostkv.pressure.rows import Row

_COLUMNS = (
    "cell",
    "pressure",
    "engine",
    "tokens/s",
    "inference",
    *(f"ok {limit:g} s" for limit in TIMEOUTS),
    *(f"good {limit:g} s" for limit in TIMEOUTS),
    "first p50/p95",
    "silence p50/max",
    "gap p95 ms",
    "request p50/p95/p99",
    "segment p50/p95/p99",
    "KV peak MiB",
    "RSS MiB",
    "recomp./rehydr.",
    "CPU s",
    "nats +",
    "recall",
)
_MIB = 2**20


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """One for each preset, in the order of the rows; seconds where nothing else is said."""
    presets = dict.fromkeys(row["cell"]["preset"] for row in rows)
    for preset in presets:
        table = Table(
            title=f"{preset} (seconds; {_footing(rows)})", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0)
        )
        for name in _COLUMNS:
            table.add_column(name, justify="left" if name in ("cell", "engine") else "right", overflow="fold")
        for row in rows:
            if row["cell"]["preset"] == preset:
                table.add_row(*cells(row))
        failed = [row for row in rows if row["cell"]["preset"] == preset and "failed" in row]
        table.caption_justify = "left"
        table.caption = "\n".join(
            f"{row['cell']['name']}, {row['engine']} does not run: {row['failed']}" for row in failed
        )
        yield table


def markdown(rows: Sequence[Row]) -> str:
    """The same, for a document."""
    parts = []
    for preset in dict.fromkeys(row["cell"]["preset"] for row in rows):
        lines = [f"### {preset}", "", "| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
        lines += ["| " + " | ".join(cells(row)) + " |" for row in rows if row["cell"]["preset"] == preset]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def cells(row: Row) -> list[str]:
    """One row's text, in the order of the columns."""
    cell = row["cell"]
    named = [
        cell["name"] + (f" #{row['repeat'] + 1}" if row["repeat"] else ""),
        f"{cell['pressure']:.3g}",
        row["engine"],
    ]
    if "failed" in row:
        return [*named, "fails", *["-"] * (len(_COLUMNS) - 4)]
    measures, server, quality = row["measures"], row["server"], row["quality"]
    limits = [measures["timeouts"].get(f"{limit:g}") for limit in TIMEOUTS]
    counts: Mapping[str, float] = server["counts"]
    return [
        *named,
        _number(measures["tokens_per_second"]),
        _number(measures.get("inference_tokens_per_second")),
        *(_percent(found and found["success"]) for found in limits),
        *(_percent(found and found["good"]) for found in limits),
        _several(measures["first_s"], "p50", "p95"),
        _several(measures["silence_s"], "p50", "max"),
        _number(None if measures["gap_s"]["p95"] is None else 1000 * measures["gap_s"]["p95"]),
        _several(measures["request_s"], "p50", "p95", "p99"),
        _several(measures["segment_s"], "p50", "p95", "p99"),
        _mib(server["kv_live_peak_bytes"]),
        _mib(server["rss_peak_bytes"]),
        " / ".join(_number(counts.get(f"{name}_tokens")) for name in ("recomputed", "rehydrated")),
        _number(server["cpu_s"]),
        _nats(quality["extra_nats"]),
        _recall(quality["recall"]),
    ]


def _failure(row: Row) -> str:
    return f"{row['cell']['name']}, {row['engine']} does not run: {row['failed']}"


def _footing(rows: Sequence[Row]) -> str:
    models = ", ".join(dict.fromkeys(row["model"] for row in rows))
    patience = "ok, good: % of clients of that patience, by one run with the longest"
    return f"{models}; {patience}; *: evaluated in bfloat16; ?: not evaluated"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _nats(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def _recall(recall: Mapping[str, Any] | None) -> str:
    return "?" if recall is None else f"{recall['exact']:.2f}" + ("" if recall["same_precision"] else "*")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _mib(size: float | None) -> str:
    return "-" if size is None else f"{size / _MIB:.0f}"


def _several(spread: Mapping[str, Any], *names: str) -> str:
    return " / ".join(_number(spread[name]) for name in names)
