"""The live page's charts as ECharts options: values in, plain dictionaries out. Knows neither page nor browser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ghostkv.page.live import Watched
from ghostkv.page.timeline import MOMENT_S, Moment

Options = dict[str, Any]

LINES = 8
"""Answers in one chart."""
_MIB = 2**20
_GREY = "#8b95a5"  # of text and axes; readable on white and on black
_GRID = "rgba(139, 149, 165, 0.22)"
_LIVE, _RESIDENT, _CACHED, _BUDGET = "#3b82f6", "#10b981", "#94a3b8", "#ef4444"
_GENERATED, _PREFILLED, _WAITING = "#8b5cf6", "#c4b5fd", "#f59e0b"
PALETTE = ("#3b82f6", "#10b981", "#f59e0b", "#ec4899", "#8b5cf6", "#06b6d4", "#84cc16", "#f97316", "#6366f1", "#14b8a6")
"""Colour of an answer: by its number, so that it keeps it."""


def colour(answer: Watched) -> str:
    """Of its line and of its row."""
    return PALETTE[answer.number % len(PALETTE)]


def frame(unit: str, span_s: float) -> Options:
    """A chart without data over the last `span_s` seconds, its axis in `unit`."""
    return {
        "animation": False,
        "backgroundColor": "transparent",
        "textStyle": {"fontFamily": "inherit"},
        "grid": {"left": 52, "right": 18, "top": 44, "bottom": 26},
        # Drawn as text on the canvas, so that no name can be markup.
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True, "order": "valueDesc"},
        "legend": {
            "type": "scroll",
            "top": 0,
            "right": 8,
            "icon": "roundRect",
            "itemWidth": 14,
            "itemHeight": 4,
            "textStyle": {"color": _GREY, "fontSize": 12},
            "pageTextStyle": {"color": _GREY},
        },
        "xAxis": {
            "type": "time",
            "axisLine": {"lineStyle": {"color": _GRID}},
            "axisTick": {"show": False},
            "axisLabel": {"color": _GREY, "hideOverlap": True},
            "splitLine": {"show": False},
            "splitNumber": 4,
        },
        "yAxis": _axis(unit),
        "series": [],
    }


def memory(moments: Sequence[Moment], budget: int, per_token: int | None, shift: float, span_s: float) -> Options:
    """KV bytes against the budget. `per_token`: of a token, None where workers differ; `shift`: from clock to epoch."""
    series = [
        _line("live: referenced blocks", _LIVE, _over(moments, shift, lambda m: m.live / _MIB), area=0.18, step="end"),
        _line("cached, unreferenced", _CACHED, _over(moments, shift, lambda m: m.cached / _MIB), width=1, step="end"),
    ]
    if per_token is not None:
        held = _over(moments, shift, lambda m: m.resident * per_token / _MIB)
        series.insert(1, _line("filled by answers (derived)", _RESIDENT, held, width=2))
    series[0]["markLine"] = _limit(budget / _MIB, f"budget {budget / _MIB:.1f} MiB")
    top = round(1.12 * budget / _MIB, 6)
    return {**_window(moments, shift, span_s), "yAxis": {"max": top}, "series": series}


def residency(answers: Iterable[Watched], chosen: str, now: float, shift: float, span_s: float) -> Options:
    """Tokens in the pool of each answer; those that were seen last, and the chosen one."""
    begin = now - span_s
    shown = [answer for answer in answers if answer.curve and (answer.open or answer.curve[-1][0] >= begin)]
    first = [answer for answer in shown if answer.id == chosen]
    picked = [*first, *(answer for answer in shown if answer.id != chosen)][:LINES]
    series = []
    for answer in sorted(picked, key=lambda answer: answer.number):
        points: list[list[float]] = [[_ms(at + shift), held] for at, held in answer.curve if at >= begin]
        if answer.open and answer.resident:
            points.append([_ms(now + shift), answer.resident])
        loud = answer.id == chosen
        line = _line(f"#{answer.number}", colour(answer), points, width=3 if loud else 1.5, area=0.15 if loud else 0)
        series.append(line | {"id": answer.id})
    limits = {"min": _ms(begin + shift), "max": _ms(now + shift)}
    return {"xAxis": limits, "series": series}


def load(moments: Sequence[Moment], shift: float, span_s: float) -> Options:
    """Tokens per second, and requests that wait."""
    whole = moments[:-1]  # the last is under way
    waiting = _over(moments, shift, lambda m: m.waiting)
    series = [
        _line("generated", _GENERATED, _over(whole, shift, lambda m: m.generated / MOMENT_S), area=0.25),
        _line("prefilled", _PREFILLED, _over(whole, shift, lambda m: m.prefilled / MOMENT_S), width=1),
        _line("waiting requests", _WAITING, waiting, step="end", yAxisIndex=1),
    ]
    return {**_window(moments, shift, span_s), "series": series}


def load_frame(span_s: float) -> Options:
    """`frame` with a second axis for the line."""
    base = frame("tokens/s", span_s)
    right = _axis("requests") | {"minInterval": 1, "splitLine": {"show": False}}
    return base | {"yAxis": [base["yAxis"], right], "grid": base["grid"] | {"right": 44}}


def rates(moments: Sequence[Moment], seconds: float = 3.0) -> tuple[float, float]:
    """Generated and prefilled tokens per second over the last whole moments."""
    if not moments:
        return 0.0, 0.0
    last = moments[-1].index  # still under way
    recent = [moment for moment in moments if last - seconds / MOMENT_S <= moment.index < last]
    return sum(m.generated for m in recent) / seconds, sum(m.prefilled for m in recent) / seconds


def _axis(unit: str) -> Options:
    return {
        "type": "value",
        "name": unit,
        "nameTextStyle": {"color": _GREY, "align": "right", "padding": [0, 6, 0, 0]},
        "axisLabel": {"color": _GREY, "showMaxLabel": unit != "MiB"},
        "splitLine": {"lineStyle": {"color": _GRID}},
        "min": 0,
    }


def _line(
    name: str, tint: str, points: list[list[float]], *, width: float = 1.5, area: float = 0, **more: Any
) -> Options:
    return {
        "type": "line",
        "name": name,
        "data": points,
        "showSymbol": False,
        "color": tint,
        "lineStyle": {"width": width},
        "areaStyle": {"opacity": area},  # 0 too: the browser keeps what it is not told
        **more,
    }


def _limit(height: float, label: str) -> Options:
    return {
        "silent": True,
        "symbol": "none",
        "data": [{"yAxis": height}],
        "lineStyle": {"color": _BUDGET, "type": "dashed", "width": 1.5},
        "label": {"formatter": label, "position": "insideEndTop", "color": _BUDGET, "fontWeight": "bold"},
    }


def _window(moments: Sequence[Moment], shift: float, span_s: float) -> Options:
    now = moments[-1].at + shift if moments else shift
    return {"xAxis": {"min": _ms(now - span_s), "max": _ms(now)}}


def _over(moments: Iterable[Moment], shift: float, value: Callable[[Moment], float]) -> list[list[float]]:
    return [[_ms(moment.at + shift), round(value(moment), 6)] for moment in moments]


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
