"""The table: a row is a change under one residency; a cell says equal, where it differs, or why it is not there."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.table import Table

from ghostkv.config import EngineConfig
from ghostkv.errors import GhostError
from ghostkv.verify.changes import CHANGES, Changed, Unavailable
from ghostkv.verify.reference import Reference, references
from ghostkv.verify.rig import RESIDENCIES, Rig
from ghostkv.verify.seen import MEASURES, Compared, likeness


@dataclass(frozen=True, slots=True)
class Row:
    """One change under one residency, its greedy and its seeded answer together."""

    change: str
    residency: str
    cells: Mapping[str, str]  # by measure: "equal", "differs: ...", "unavailable: ..."
    compared: Mapping[str, int]  # by measure
    how: str  # what was done to the last of its answers

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not any(cell.startswith("differs") for cell in self.cells.values())


@dataclass(frozen=True, slots=True)
class Verification:
    """What `ghostkv verify` found."""

    model: str
    dtype: str
    kv_dtype: str
    manifest: str
    tokens: int  # of each answer
    rows: tuple[Row, ...]

    @property
    def equal(self) -> bool:
        """Whether no cell of any row differs."""
        return all(row.equal for row in self.rows)


def verification(
    path: Path, config: EngineConfig, tokens: int, announce: Callable[[str], None], only: Sequence[str] = ()
) -> Verification:
    """Make the changes in `only`, or all. Raises what loading the model raises; what a change raises is its cell."""
    rig = Rig(path, config, announce)
    found = references(rig, tokens, announce)
    rows: list[Row] = []
    for name in only or CHANGES:
        for residency in RESIDENCIES:
            announce(f"{name}, {residency}")
            rows.append(_row(rig, name, residency, [each for each in found if each.turn.residency == residency]))
    with rig.opened() as engine:
        manifest = engine.worker.manifest
    kv_dtype = rig.config.kv_dtype
    return Verification(rig.model.checkpoint.name, rig.config.dtype, kv_dtype, manifest, tokens, tuple(rows))


def _row(rig: Rig, name: str, residency: str, subjects: Sequence[Reference]) -> Row:
    said, changed = "", list[Changed]()
    try:
        changed = CHANGES[name](rig, subjects)
    except Unavailable as reason:
        said = f"unavailable: {reason}"
    except GhostError as error:
        said = f"differs: it failed: {error.message}"
    totals = dict.fromkeys(MEASURES, Compared())
    for reference, each in zip(subjects, changed, strict=False):
        compared = likeness(reference.seen, each.seen).of
        totals = {measure: totals[measure] + compared[measure] for measure in MEASURES}
    cells = {measure: said or _cell(total) for measure, total in totals.items()}
    counts = {measure: total.count for measure, total in totals.items()}
    return Row(name, residency, cells, counts, changed[-1].evidence if changed else "")


def _cell(total: Compared) -> str:
    return f"differs: {total.difference}" if total.difference else "equal"


def as_text(found: Verification) -> Table:
    """For a terminal."""
    table = Table(title=_title(found), title_justify="left", box=SIMPLE, padding=(0, 1))
    for name in ("change", "residency", *MEASURES, "what was done"):
        table.add_column(name)
    before = ""
    for row in found.rows:
        table.add_row("" if row.change == before else row.change, row.residency, *_shown(row))
        before = row.change
    return table


def as_json(found: Verification) -> str:
    """For programs."""
    rows = [
        {"change": row.change, "residency": row.residency, "how": row.how}
        | {measure: {"result": row.cells[measure], "compared": row.compared[measure]} for measure in MEASURES}
        for row in found.rows
    ]
    head = {name: getattr(found, name) for name in ("model", "dtype", "kv_dtype", "manifest", "tokens", "equal")}
    return json.dumps(head | {"rows": rows}, indent=1)


def as_html(found: Verification) -> str:
    """One page without anything else."""
    heads = "".join(f"<th>{name}</th>" for name in ("change", "residency", *MEASURES, "what was done"))
    lines = [
        "<tr>"
        + "".join(f"<td>{html.escape(text)}</td>" for text in (row.change, row.residency, *_shown(row)))
        + "</tr>"
        for row in found.rows
    ]
    title = html.escape(_title(found))
    style = "body{font:14px sans-serif}table{border-collapse:collapse}td,th{border:1px solid #999;padding:3px 7px}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f"<h1>{title}</h1><table><tr>{heads}</tr>\n" + "\n".join(lines) + "\n</table></html>\n"
    )


def _title(found: Verification) -> str:
    kv = "" if found.kv_dtype == "auto" else f", KV {found.kv_dtype}"
    said = "everything that was compared is equal" if found.equal else "SOMETHING DIFFERS"
    return f"{found.model} {found.dtype}{kv}, answers of {found.tokens} tokens: {said}"


def _shown(row: Row) -> list[str]:
    """Cells with what they compared; the reason of a row that is not there stands once."""
    cells = [f"equal ({row.compared[name]:,})" if row.cells[name] == "equal" else row.cells[name] for name in MEASURES]
    if row.cells["logits"].startswith("unavailable"):
        return ["unavailable"] * len(MEASURES) + [row.cells["logits"].removeprefix("unavailable: ")]
    return [*cells, row.how]
