"""The figure of a report: recall by distance, and extra nats by distance from the boundary, segment length and tail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib.axes import Axes  # after the choice of back end
from matplotlib.figure import Figure

from ghostkv.evaluate.curves import NO_SINKS


def plot_report(path: Path, record: Mapping[str, Any]) -> None:
    """Write the image that `path` names (PNG or SVG), with a panel for each part that was run and has one."""
    panels: list[Callable[[Axes, Mapping[str, Any]], None]] = []
    if "recall" in record:
        panels.append(_recall)
    for text, read in record.get("perplexity", {}).get("texts", {}).items():
        panels += [partial(_by_distance, text, read), partial(_curves, text, read)]
    if not panels:
        return
    figure = Figure(figsize=(6.4 * len(panels), 5), dpi=110, layout="constrained")
    for axes, draw in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw(axes, record)
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7)
    budget = record["segment"]
    figure.suptitle(f"{record['model']}: {', '.join(f'{name} {value}' for name, value in budget.items())}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _recall(axes: Axes, record: Mapping[str, Any]) -> None:
    recall = record["recall"]
    form = recall["forms"][0]
    cells = [cell for cell in recall["cells"] if cell["form"] == form]
    for name in recall["arms"]:
        points = [(cell["distance"], cell["arms"][name]["exact"]) for cell in cells if name in cell["arms"]]
        held = recall["arms"][name]["mean_resident"]
        axes.errorbar(
            [distance for distance, _ in points],
            [exact["estimate"] for _, exact in points],
            yerr=[
                [exact["estimate"] - exact["low"] for _, exact in points],
                [exact["high"] - exact["estimate"] for _, exact in points],
            ],
            marker="o",
            capsize=2,
            label=f"{name} ({held:.0f} tokens)",
        )
    axes.set_xscale("log")
    axes.set_xticks([cell["distance"] for cell in cells], [str(cell["distance"]) for cell in cells])
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("segments since the fact was stated")
    axes.set_ylabel("exact answers")
    axes.set_title(f"recall ({form} questions)", fontsize=10)


def _by_distance(text: str, read: Mapping[str, Any], axes: Axes, _: Mapping[str, Any]) -> None:
    highest = 0.0
    for row in read["parts"]:
        extra = {label: each["estimate"] for label, each in row["by_distance"].items()}
        label = f"{row['arm']} ({row['mean_resident']:.0f})"
        if row["arm"] == NO_SINKS:
            label += f": {row['extra']['estimate']:+.1f}"  # mostly far off the scale of the others
        else:
            highest = max(highest, *extra.values())
        if row["arm"] != "full":
            axes.plot(list(extra), list(extra.values()), marker="o", label=label)
    if highest > 0:
        axes.set_ylim(top=1.15 * highest)
    axes.set_xlabel("tokens after the boundary")
    axes.set_ylabel("extra nats per token")
    axes.set_title(f"{text} (mean resident tokens)", fontsize=10)


def _curves(text: str, read: Mapping[str, Any], axes: Axes, _: Mapping[str, Any]) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in read["curves"]:
        if row["arm"] != "full":
            label = f"{row['arm']}, {row['target']}"
            lines.setdefault(label, []).append((row["mean_resident"], row["extra"]["estimate"]))
    for label, points in lines.items():
        style = "-" if label.startswith("segment") else ":" if "window" in label else "--"
        axes.plot(*zip(*sorted(points), strict=True), style, marker=".", label=label)
    axes.set_xlabel("mean resident tokens")
    axes.set_ylabel("extra nats per token")
    axes.set_title(f"{text}, by arm and segment length", fontsize=10)
