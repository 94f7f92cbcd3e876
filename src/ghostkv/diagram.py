"""A plan for people: a tree for the terminal, and a drawing of its graph as SVG text. Formatting only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from rich.markup import escape as plain
from rich.tree import Tree

from ghostkv.protocol.plan import Node, Plan

_WIDTH, _HEIGHT = 200, 58  # of a box; all sizes in pixels
_BESIDE, _BELOW, _MARGIN = 24, 44, 16  # between boxes of a row, between rows, around all
_LETTERS = 27  # that fit a box
_INK, _FILL = "#1f2937", {"sequential": "#e0ecff", "parallel": "#e6f6e6"}


@dataclass(frozen=True, slots=True)
class Box:
    """Where a node is drawn: its top left corner."""

    node: Node
    x: int
    y: int


def plan_tree(plan: Plan) -> Tree:
    """One line for each node: title, mode, share of the tokens, and what it needs."""
    if plan.open:
        return Tree("one open answer: no plan")
    total = sum(node.target for node in plan.nodes)
    tree = Tree(f"{len(plan.nodes)} parts, in document order")
    for node in plan.nodes:
        needs = f"after {', '.join(str(other + 1) for other in node.depends_on)}" if node.depends_on else "at once"
        line = (
            f"{node.index + 1}. {plain(node.title)}  [dim]{node.mode}, {node.target / total:.0%}, starts {needs}[/dim]"
        )
        branch = tree.add(line)
        if node.goal:
            branch.add(plain(node.goal))
    return tree


def layout(plan: Plan) -> tuple[Box, ...]:
    """A box for each node. A row holds what can start once the rows above have ended."""
    rows: list[list[Node]] = []
    row_of: list[int] = []
    for node in plan.nodes:
        row = 1 + max((row_of[other] for other in node.depends_on), default=-1)
        row_of.append(row)
        if row == len(rows):
            rows.append([])
        rows[row].append(node)
    full = max(_row_width(row) for row in rows)
    places = {
        node.index: (
            _MARGIN + (full - _row_width(row)) // 2 + at * (_WIDTH + _BESIDE),
            _MARGIN + depth * (_HEIGHT + _BELOW),
        )
        for depth, row in enumerate(rows)
        for at, node in enumerate(row)
    }
    return tuple(Box(node, *places[node.index]) for node in plan.nodes)


def plan_svg(plan: Plan) -> str:
    """The graph as an SVG document. A need that follows from another is not drawn."""
    boxes = layout(plan)
    width = max(box.x for box in boxes) + _WIDTH + _MARGIN
    height = max(box.y for box in boxes) + _HEIGHT + _MARGIN
    total = sum(node.target for node in plan.nodes)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="sans-serif">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{_INK}"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *_arrows(plan, boxes),
            *(part for box in boxes for part in _drawn(box, box.node.target / total)),
            "</svg>\n",
        )
    )


def direct_needs(plan: Plan, index: int) -> tuple[int, ...]:
    """The dependencies of a node that no other of them implies."""
    needs = plan.nodes[index].depends_on
    implied = {before for other in needs for before in plan.ancestors(other)}
    return tuple(other for other in needs if other not in implied)


def _arrows(plan: Plan, boxes: Sequence[Box]) -> list[str]:
    drawn = []
    for box in boxes:
        for other in direct_needs(plan, box.node.index):
            above = boxes[other]
            x1, y1, x2, y2 = above.x + _WIDTH // 2, above.y + _HEIGHT, box.x + _WIDTH // 2, box.y
            bend = _BELOW // 2
            drawn.append(
                f'<path d="M{x1} {y1}C{x1} {y1 + bend} {x2} {y2 - bend} {x2} {y2}" fill="none" stroke="{_INK}" '
                'marker-end="url(#tip)"/>'
            )
    return drawn


def _drawn(box: Box, share: float) -> tuple[str, str, str, str]:
    node = box.node
    title = node.title or "the whole answer"
    shown = title if len(title) <= _LETTERS else f"{title[: _LETTERS - 1].rstrip()}\u2026"
    middle = box.x + _WIDTH // 2
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{_FILL[node.mode]}" '
        f'stroke="{_INK}"><title>{escape(f"{title}. {node.goal}" if node.goal else title)}</title></rect>',
        f'<text x="{middle}" y="{box.y + 24}" font-size="13" text-anchor="middle" fill="{_INK}">',
        f"{node.index + 1}. {escape(shown)}</text>",
        f'<text x="{middle}" y="{box.y + 44}" font-size="11" text-anchor="middle" fill="{_INK}">'
        f"{node.mode}, {share:.0%}</text>",
    )


def _row_width(row: Sequence[Node]) -> int:
    return len(row) * (_WIDTH + _BESIDE) - _BESIDE
