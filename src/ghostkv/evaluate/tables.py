"""Tables of a report for the terminal. Formatting only; every row carries the configuration that it was measured at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table


def tables(record: Mapping[str, Any]) -> Iterator[Table]:
    """What was run, and a table or two for each part of it."""
    yield _header(record)
    if "recall" in record:
        yield _recall(record["recall"])
    if "perplexity" in record:
        yield from _perplexity(record["perplexity"])
    if "instructions" in record:
        yield _instructions(record["instructions"])
    if "drift" in record:
        yield _drift(record["drift"])


def _header(record: Mapping[str, Any]) -> Table:
    table = _table("continuity")
    for name in ("model", "dtype", "commit", "segment by default", "command"):
        table.add_column(name)
    named = (record["model"], record["dtype"], record["commit"])
    table.add_row(*named, _configuration(record["segment"]), record["command"])
    return table


def _recall(recall: Mapping[str, Any]) -> Table:
    cells = recall["cells"]
    what = "exact / forced choice (difference to the better ceiling); void: both ceilings below 70 %"
    table = _table(f"recall, {recall['source']} documents: {what}")
    table.add_column("arm")
    for cell in cells:
        void = ", void" if cell["void"] else ""
        table.add_column(f"{cell['form']}, {cell['distance']}{void}", justify="right")
    for name in ("stale", "mean", "peak"):
        table.add_column(name, justify="right")
    table.add_column("configuration")
    for name, arm in recall["arms"].items():
        stale = arm["stale"]
        table.add_row(
            name,
            *(_cell(cell["arms"].get(name)) for cell in cells),
            "" if stale is None else f"{stale['estimate']:.1%} (to {stale['high']:.1%})",
            f"{arm['mean_resident']:.0f}",
            str(arm["peak_resident"]),
            _configuration(arm["configuration"]),
        )
    return table


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    text = f"{found['exact']['estimate']:.0%}"
    if found["choice"] is not None:
        text += f" / {found['choice']['estimate']:.0%}"
    difference = found["difference"]
    if difference is not None:
        text += f" ({100 * difference['low']:+.0f}..{100 * difference['high']:+.0f})"
    return text


def _perplexity(found: Mapping[str, Any]) -> Iterator[Table]:
    for text, read in found["texts"].items():
        said = f"{text}, read {found['form']}; {read['passages']} passages"
        yield _extra(f"extra nats per token against the whole history: {said}", read)


def _extra(title: str, found: Mapping[str, Any]) -> Table:
    table = _table(title)
    for name in ("segment", "tail"):
        table.add_column(name, justify="right")
    table.add_column("arm")
    for name in ("extra", "95 %", "where a fact is repeated", "slope per boundary, 95 %", "mean", "peak"):
        table.add_column(name, justify="right")
    table.add_column("configuration")
    for row in (*found["parts"], *found["curves"]):
        extra, slope = row["extra"], row["slope"]["bootstrap"]
        table.add_row(
            str(row["target"]),
            str(row["tail"]),
            row["arm"],
            f"{extra['estimate']:+.4f}",
            f"{extra['low']:+.4f}..{extra['high']:+.4f}",
            _limits(row["repeated"]),
            f"{slope['low']:+.5f}..{slope['high']:+.5f}",
            f"{row['mean_resident']:.0f}",
            str(row["peak_resident"]),
            _configuration(row["configuration"]),
        )
    return table


def _limits(interval: Mapping[str, float] | None) -> str:
    if interval is None:
        return ""
    return f"{interval['estimate']:+.3f} ({interval['low']:+.3f}..{interval['high']:+.3f})"


def _instructions(found: Mapping[str, Any]) -> Table:
    table = _table(f"instructions kept: {found['answers']} answers of {found['segments']} segments")
    for name in ("arm", "first 3 segments", "last 3 segments", "last to first", "mean", "peak"):
        table.add_column(name, justify="left" if name == "arm" else "right")
    for name, arm in found["arms"].items():
        ratio = arm["last_to_first"]
        table.add_row(
            name,
            _share(arm["first"]),
            _share(arm["last"]),
            "" if ratio is None else f"{ratio:.2f}",
            f"{arm['mean_resident']:.0f}",
            str(arm["peak_resident"]),
        )
    return table


def _drift(found: Mapping[str, Any]) -> Table:
    table = _table(f"drift: {found['answers']} answers of {found['segments']} segments")
    names = ("arm", "scaffolding", "reopenings", "distinct 1, 2, 3", "fact precision", "mean", "peak")
    for name in names:
        table.add_column(name, justify="left" if name == "arm" else "right")
    for name, arm in found["arms"].items():
        table.add_row(
            name,
            _share(arm["scaffolding"]),
            _share(arm["reopenings"]),
            ", ".join(f"{share:.2f}" for share in arm["distinct"].values()),
            _share(arm["fact_precision"]),
            f"{arm['mean_resident']:.0f}",
            str(arm["peak_resident"]),
        )
    return table


def _share(interval: Mapping[str, float]) -> str:
    return f"{interval['estimate']:.1%} ({interval['low']:.1%}..{interval['high']:.1%})"


def _configuration(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1))
