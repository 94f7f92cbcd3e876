"""The small things that the live page is built of."""

from __future__ import annotations

from typing import Any, Self

from nicegui import ui

from ghostkv.page.rows import Row


class Tile:
    """A number with its name."""

    def __init__(self, name: str, *, metered: bool = False) -> None:
        self._bar = None
        with ui.element("div").classes("panel tile").props(f'data-tile="{name}"'):
            ui.label(name).classes("name")
            self._value = ui.label("–").classes("value")
            self._more = ui.label("").classes("more")
            if metered:
                with ui.element("div").classes("meter"):
                    self._bar = ui.element("div")

    def show(self, value: str, more: str, share: float = 0.0) -> None:
        """The bar shows `share`, 0 to 1."""
        self._value.text, self._more.text = value, more
        if self._bar is not None:
            self._bar.style(f"width: {min(100.0, 100 * share):.1f}%")


class Panel:
    """A framed part of the page; what is made within it stands below its two lines."""

    def __init__(self, title: str, note: str = "", kind: str = "") -> None:
        self.frame = ui.element("section").classes(f"panel {kind}")
        with self.frame:
            self.title = ui.label(title).classes("h2")
            self.note = ui.label(note).classes("note")

    def __enter__(self) -> Self:
        """What is made now stands in it."""
        self.frame.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """No more."""
        self.frame.__exit__(*_)


def table(columns: list[Row], key: str, name: str, empty: str) -> ui.table:
    """A plain table. Its cells are text and never markup."""
    made = ui.table(rows=[], columns=columns, row_key=key, pagination=0)
    made.classes(f"tight {name} full-width")
    return made.props(f'flat dense hide-pagination no-data-label="{empty}"')


def chart(name: str, options: dict[str, Any], height: str) -> ui.echart:
    """A chart as wide as its panel."""
    return ui.echart(options).style(f"height: {height}; width: 100%").classes(f"chart-{name}")


def draw(shown: ui.echart, options: dict[str, Any]) -> None:
    """Send what is new to the browser; the frame stays."""
    shown.run_chart_method("setOption", options, {"replaceMerge": ["series"]})
