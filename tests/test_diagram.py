"""Drawings of plans: well-formed, no box on another, arrows from below one box to above another."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from ghostkv.cli import app
from ghostkv.diagram import direct_needs, layout, plan_svg, plan_tree
from ghostkv.errors import ConfigError, InvalidRequest
from ghostkv.explain import plan_option, read_plan
from ghostkv.protocol.plan import OPEN, Node, Plan

SVG = "{http://www.w3.org/2000/svg}"
WIDTH, HEIGHT = 200, 58


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    count = draw(st.integers(1, 12))
    titles = st.text(
        st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_categories=("C", "Z")), min_size=1, max_size=60
    )
    return Plan.of(
        Node(i, draw(titles), depends_on=tuple(sorted(draw(st.sets(st.integers(0, i - 1))))) if i else ())
        for i in range(count)
    )


@given(plans())
def test_boxes_stand_apart_and_inside(plan: Plan) -> None:
    root = ElementTree.fromstring(plan_svg(plan))
    boxes = layout(plan)
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    for box in boxes:
        assert 0 < box.x < box.x + WIDTH < width
        assert 0 < box.y < box.y + HEIGHT < height
    for a, b in combinations(boxes, 2):
        assert abs(a.x - b.x) > WIDTH or abs(a.y - b.y) > HEIGHT
    rects = root.findall(f"{SVG}rect")
    assert [(rect.attrib["x"], rect.attrib["y"]) for rect in rects[1:]] == [(str(box.x), str(box.y)) for box in boxes]


@given(plans())
def test_arrows_go_down_and_are_the_needs_that_nothing_implies(plan: Plan) -> None:
    root = ElementTree.fromstring(plan_svg(plan))
    boxes = layout(plan)
    arrows = set()
    for path in root.findall(f"{SVG}path"):
        numbers = [int(number) for number in re.findall(r"-?\d+", path.attrib["d"])]
        arrows.add((numbers[0], numbers[1], numbers[-2], numbers[-1]))
    expected = {
        (boxes[a].x + WIDTH // 2, boxes[a].y + HEIGHT, boxes[b].x + WIDTH // 2, boxes[b].y)
        for b in range(len(boxes))
        for a in direct_needs(plan, b)
    }
    assert arrows == expected
    assert all(y1 < y2 for _, y1, _, y2 in arrows)


@given(plans())
def test_nothing_is_lost_by_leaving_out_what_is_implied(plan: Plan) -> None:
    kept = Plan(tuple(Node(n.index, n.title, depends_on=direct_needs(plan, n.index)) for n in plan.nodes))
    for node in plan.nodes:
        assert kept.ancestors(node.index) == plan.ancestors(node.index)
        for need in direct_needs(plan, node.index):
            fewer = tuple(other for other in direct_needs(plan, node.index) if other != need)
            assert all(need not in plan.ancestors(other) for other in fewer)


def test_the_tree_says_who_waits_for_whom() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(plan_tree(Plan.of([Node(0, "[bold]Sea"), Node(1, "Land", "Say why.", 3.0, (0,))])))
        console.print(plan_tree(OPEN))
    shown = capture.get()
    assert "1. [bold]Sea  sequential, 25%, starts at once" in shown
    assert "2. Land  sequential, 75%, starts after 1" in shown
    assert "Say why." in shown
    assert "no plan" in shown


def test_explain(tmp_path: Path) -> None:
    svg = tmp_path / "plan.svg"
    result = CliRunner().invoke(app, ["explain", "Write a story in 3 chapters.", "--svg", str(svg)])
    assert result.exit_code == 0, result.output
    assert "chapter 3" in result.stdout
    assert len(ElementTree.parse(svg).getroot().findall(f"{SVG}rect")) == 4
    file = tmp_path / "plan.json"
    file.write_text(json.dumps([{"title": "Sea"}, {"title": "Land", "depends_on": [0]}]))
    assert "starts after 1" in CliRunner().invoke(app, ["explain", "--plan", str(file)]).stdout
    assert "no plan" in CliRunner().invoke(app, ["explain", "-"], input="Hello").stdout


def test_plans_from_the_command_line(tmp_path: Path) -> None:
    assert [plan_option(value) for value in (None, "auto", "model")] == [None, "auto", "model"]
    for text, error in (("{}", ConfigError), ("nonsense", ConfigError), ('[{"title": 3}]', InvalidRequest)):
        file = tmp_path / "plan.json"
        file.write_text(text)
        with pytest.raises(error):
            plan_option(str(file))
    with pytest.raises(ConfigError):
        read_plan(tmp_path / "absent.json")
