"""Figures from rows: tokens/s over pressure and against quality, and the article's figures 2 to 5."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes  # after the choice of back end
from matplotlib.figure import Figure

from ghostkv.pressure.measures import SEGMENT
from ghostkv.pressure.rows import Row

_MIB = 2**20
_LIVE = "live KV: blocks referenced [MiB]"
_HIGHEST_PAIR = "table4"


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write every figure that the rows have something for, as PNG files in `folder`; their paths."""
    ran = [row for row in rows if "failed" not in row]
    written = []
    for name, drawing in _FIGURES.items():
        figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
        if drawing(figure, ran):
            folder.mkdir(parents=True, exist_ok=True)
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1])
    return written


def _over_pressure(figure: Figure, rows: Sequence[Row]) -> bool:
    """The headline: tokens/s of complete answers over pressure, a panel for each load, a line for each engine."""
    rows = [row for row in rows if row["cell"]["preset"] == "table4"]
    loads = sorted({(row["cell"]["users"], row["cell"]["output"]) for row in rows})
    if not loads:
        return False
    across = min(3, len(loads))
    panels = figure.subplots(-(-len(loads) // across), across, squeeze=False, sharex=True, sharey=True)
    for load, axes in zip(loads, panels.flat):
        here = [row for row in rows if (row["cell"]["users"], row["cell"]["output"]) == load]
        for engine in _engines(here):
            points = _medians([(row["cell"]["pressure"], row) for row in here if row["engine"] == engine])
            axes.plot(*zip(*points), marker="o", color=_color(engine), label=engine)
        places = sorted({row["cell"]["pressure"] for row in here})
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_ylim(bottom=0)
        axes.set_title(f"{load[0]} users x {load[1]} tokens", fontsize=9)
        _labelled(axes, "KV demand / KV memory", "tokens/s of complete answers")
    return True


def _against_quality(figure: Figure, rows: Sequence[Row]) -> bool:
    """Tokens/s against extra nats, a panel for each cell of long outputs."""
    rows = [row for row in rows if row["cell"]["preset"] == "long" and row["quality"]["extra_nats"] is not None]
    names = list(dict.fromkeys(row["cell"]["name"] for row in rows))
    if not names:
        return False
    for name, axes in zip(names, figure.subplots(1, len(names), squeeze=False)[0]):
        here = [row for row in rows if row["cell"]["name"] == name]
        for engine in _engines(here):
            points = _medians([(row["quality"]["extra_nats"], row) for row in here if row["engine"] == engine])
            axes.plot(*zip(*points), "o", markersize=9, color=_color(engine), label=engine)
        axes.set_ylim(bottom=0)
        axes.set_title(name, fontsize=9)
        _labelled(axes, "extra nats per token (prose), lower is better", "tokens/s of complete answers")
    return True


def _saw_tooth(figure: Figure, rows: Sequence[Row]) -> bool:
    """Figure 2: live KV of one answer over time, released at each boundary."""
    rows = [row for row in _stories(rows) if row["engine"].startswith("ghostkv segment")]
    if not rows:
        return False
    axes = figure.subplots()
    trace = [point for point in rows[-1]["server"]["trace"] if point[1] >= 0]
    axes.step(
        [at for at, _, _ in trace], [kv / _MIB for _, kv, _ in trace], where="post", color=_color(rows[-1]["engine"])
    )
    flushes = rows[-1]["server"]["counts"].get("flushes", 0)
    axes.set_title(
        f"{rows[-1]['engine']}: {flushes:.0f} rehydrate and flush cycles; blocks reserved, read 5 times a second"
    )
    axes.set_ylim(bottom=0)
    _labelled(axes, "seconds", _LIVE, legend=False)
    return True


def _memory_by_segment(figure: Figure, rows: Sequence[Row]) -> bool:
    """Figure 3: memory at the end of each 150 tokens, live KV and the processes' RSS."""
    rows = _stories(rows)
    if not rows:
        return False
    panels = figure.subplots(1, 2)
    for row in rows:
        points = _by_segment(row)
        index = [segment for segment, _, _ in points]
        if all(kv >= 0 for _, kv, _ in points):
            panels[0].plot(index, [kv / _MIB for _, kv, _ in points], color=_color(row["engine"]), label=row["engine"])
        panels[1].plot(index, [rss / _MIB for _, _, rss in points], color=_color(row["engine"]), label=row["engine"])
    for axes, what in zip(panels, (_LIVE, "RSS of the server's processes [MiB]")):
        axes.set_ylim(bottom=0)
        _labelled(axes, f"segment of {SEGMENT} tokens", what)
    return True


def _residency(figure: Figure, rows: Sequence[Row]) -> bool:
    """Figure 4, measured instead of conceptual: KV over tokens generated, and the payload that is carried."""
    rows = _stories(rows)
    if not rows:
        return False
    axes = figure.subplots()
    for row in rows:
        points = [(tokens, _at(row["server"]["trace"], at)[1]) for tokens, at in row["server"]["token_times"]]
        if all(kv >= 0 for _, kv in points):
            axes.plot(
                [t for t, _ in points],
                [kv / _MIB for _, kv in points],
                color=_color(row["engine"]),
                label=row["engine"],
            )
        counts = row["server"]["counts"]
        if counts.get("payloads"):
            mean = counts["payload_bytes"] / counts["payloads"] / _MIB
            axes.axhline(mean, color=_color(row["engine"]), linestyle=":", label=f"payload, {1024 * mean:.1f} KiB")
    axes.set_ylim(bottom=0)
    _labelled(axes, "tokens generated", _LIVE)
    return True


def _highest_pressure(figure: Figure, rows: Sequence[Row]) -> bool:
    """Figure 5: the largest load at the highest pressure, tokens/s and success."""
    rows = [row for row in rows if row["cell"]["preset"] == _HIGHEST_PAIR]
    if not rows:
        return False
    most = max((row["cell"]["users"], row["cell"]["output"], row["cell"]["pressure"]) for row in rows)
    here = [row for row in rows if (row["cell"]["users"], row["cell"]["output"], row["cell"]["pressure"]) == most]
    panels = figure.subplots(1, 2)
    names = _engines(here)
    for axes, what, read in zip(
        panels, ("tokens/s of complete answers", "% complete within 120 s"), (_speed, _success)
    ):
        values = [median(read(row) for row in here if row["engine"] == name) for name in names]
        bars = axes.bar(range(len(names)), values, color=[_color(name) for name in names])
        axes.bar_label(bars, fmt="%.0f")
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7)
        if read is _success:
            axes.set_ylim(0, 105)
        _labelled(axes, "", what, legend=False)
    figure.suptitle(f"{most[0]} users x {most[1]} tokens, KV demand {most[2]:g} x the memory", fontsize=10)
    return True


def _stories(rows: Sequence[Row]) -> list[Row]:
    """Of each engine the latest run of one long answer."""
    found = {
        row["engine"]: row for row in rows if row["cell"]["preset"] == "story" and row["server"].get("token_times")
    }
    return list(found.values())


def _by_segment(row: Row) -> list[tuple[int, float, float]]:
    """(segment, live KV, RSS) when its last token came."""
    found: dict[int, tuple[int, float, float]] = {}
    for tokens, at in row["server"]["token_times"]:
        segment = int(-(-tokens // SEGMENT))
        _, kv, rss = _at(row["server"]["trace"], at)
        found[segment] = (segment, kv, rss)
    return list(found.values())


def _at(trace: Sequence[Sequence[float]], at: float) -> Sequence[float]:
    """The look that was nearest before."""
    return next((point for point in reversed(trace) if point[0] <= at), trace[0])


def _medians(points: Sequence[tuple[float, Row]]) -> list[tuple[float, float]]:
    """Repeats of one place come to one point."""
    places: dict[float, list[float]] = {}
    for place, row in points:
        places.setdefault(place, []).append(_speed(row))
    return sorted((place, median(values)) for place, values in places.items())


def _speed(row: Row) -> float:
    return float(row["measures"]["tokens_per_second"] or 0.0)


def _success(row: Row) -> float:
    within: Mapping[str, Any] = row["measures"]["timeouts"].get("120", {})
    return 100.0 * float(within.get("success") or 0.0)


def _engines(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["engine"] for row in rows))


def _color(engine: str) -> str:
    """Ours in blues and greens by residency, peers in warm colours; a precision other than bfloat16 is darker."""
    for part, plain, quantized in _COLORS:
        if part in engine:
            return quantized if "int8" in engine else plain
    return "tab:gray"


_COLORS = (
    ("over", "tab:olive", "tab:olive"),
    ("ghostkv auto", "tab:blue", "navy"),
    ("ghostkv segment", "tab:cyan", "teal"),
    ("ghostkv full", "tab:green", "darkgreen"),
    ("ghostkv sink_window", "tab:purple", "indigo"),
    ("vllm", "tab:red", "tab:red"),
    ("context shift", "tab:brown", "tab:brown"),
    ("llama", "tab:orange", "tab:orange"),
)

_FIGURES: Mapping[str, Callable[[Figure, Sequence[Row]], bool]] = {
    "pressure": _over_pressure,
    "quality": _against_quality,
    "figure2_memory_trace": _saw_tooth,
    "figure3_memory_by_segment": _memory_by_segment,
    "figure4_residency": _residency,
    "figure5_highest_pressure": _highest_pressure,
}


def _labelled(axes: Axes, x: str, y: str, *, legend: bool = True) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25)
    if legend:
        axes.legend(fontsize=7)
