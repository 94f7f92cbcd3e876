"""Plans: the gold set, dependencies, validation, division of tokens, a model's outline."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ghostkv.errors import InvalidRequest
from ghostkv.protocol.node_prompt import joint, node_note, noted
from ghostkv.protocol.outline import read_outline
from ghostkv.protocol.plan import MOST_NODES, OPEN, Node, Plan, PlanItem, divide, topological_segment
from ghostkv.protocol.render import Conversation
from ghostkv.request import Message
from protocol.plan_gold import SPLIT, WHOLE, Gold


def links(gold: Gold) -> list[tuple[int, ...]]:
    count = len(gold.titles.split("|"))
    if gold.links == "free":
        return [()] * count
    if gold.links == "chain":
        return [(i - 1,) if i else () for i in range(count)]
    return [() if entry == "-" else tuple(map(int, entry.split(","))) for entry in gold.links.split()]


@pytest.mark.parametrize("gold", SPLIT, ids=lambda gold: gold.prompt[:40])
def test_what_plainly_asks_for_parts(gold: Gold) -> None:
    plan = topological_segment(gold.prompt, "auto")
    assert [node.title for node in plan.nodes] == gold.titles.split("|")
    assert [node.depends_on for node in plan.nodes] == links(gold)
    for node in plan.nodes:
        assert (node.mode == "sequential") >= bool(node.depends_on)


@pytest.mark.parametrize("prompt", WHOLE, ids=lambda prompt: prompt[:40])
def test_what_does_not(prompt: str) -> None:
    assert topological_segment(prompt, "auto") == OPEN


def test_the_gold_set_is_large_enough() -> None:
    assert len(SPLIT) + len(WHOLE) >= 60
    assert len({*WHOLE, *(gold.prompt for gold in SPLIT)}) == len(SPLIT) + len(WHOLE)


def test_headings_are_written_as_asked() -> None:
    plan = topological_segment("Write about tea with the headings History, Health.", "auto")
    assert [node.heading for node in plan.nodes] == ["## History", "## Health"]
    assert not any(node.heading for node in topological_segment("Write a story in 2 chapters", "auto").nodes)


WORDS = re.findall(
    r"\S+|\n", "write 3 chapters for each of a , and b : \n - 1. ? > first then with headings finally ```"
)


@given(st.text(max_size=200) | st.lists(st.sampled_from(WORDS), max_size=40).map(" ".join))
def test_any_prompt_has_a_plan(prompt: str) -> None:
    plan = topological_segment(prompt, "auto")
    assert Plan.of(plan.nodes) == plan if not plan.open else True


def test_a_long_prompt_is_read_quickly_or_not_at_all() -> None:
    assert topological_segment("\n" * 19_999 + "x", "auto") == OPEN
    assert topological_segment("Write 3 chapters. " * 100_000, "auto") == OPEN


# --- given plans ---


def test_a_given_plan() -> None:
    plan = topological_segment(
        "", [{"title": " Sea "}, PlanItem("Land", "Say why.", 2.5, (0, 0)), {"title": "Sky", "depends_on": [1, 0]}]
    )
    assert plan.nodes == (
        Node(0, "Sea", mode="parallel"),
        Node(1, "Land", "Say why.", 2.5, (0,), "sequential"),
        Node(2, "Sky", "", 1.0, (0, 1), "sequential"),
    )


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"goal": "x"}, "title"),
        ({"title": ""}, "title"),
        ({"title": "a\nb"}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"title": "x", "goal": 3}, "goal"),
        ({"title": "x", "target": 0}, "target"),
        ({"title": "x", "target": float("nan")}, "target"),
        ({"title": "x", "target": True}, "target"),
        ({"title": "x", "depends_on": [1]}, "depends_on"),
        ({"title": "x", "depends_on": [2]}, "depends_on"),
        ({"title": "x", "depends_on": [-1]}, "depends_on"),
        ({"title": "x", "depends_on": [99]}, "depends_on"),
        ({"title": "x", "depends_on": 0}, "depends_on"),
        ({"title": "x", "colour": 1}, "colour"),
    ],
)
def test_a_wrong_part_is_refused_by_name(item: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        topological_segment("", [{"title": "first"}, item, {"title": "last"}])
    assert refusal.value.param == f"ghostkv.plan[1].{field}"


@pytest.mark.parametrize("plan", [[], [{"title": "x"}] * (MOST_NODES + 1), "always"])
def test_a_plan_of_no_size(plan: object) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        topological_segment("", plan)  # type: ignore[arg-type]
    assert refusal.value.param == "ghostkv.plan"


def test_ancestors_and_descendants() -> None:
    plan = Plan.of([Node(0, "a"), Node(1, "b", depends_on=(0,)), Node(2, "c"), Node(3, "d", depends_on=(1, 2))])
    assert [plan.ancestors(i) for i in range(4)] == [(), (0,), (), (0, 1, 2)]
    assert [plan.descendants(i) for i in range(4)] == [(1, 3), (3,), (3,), ()]


@given(st.integers(0, 10_000), st.lists(st.sampled_from([0.5, 1, 2, 3, 0.1, 1e6]), min_size=1, max_size=20))
def test_division_is_whole_and_within_one_of_exact(total: int, targets: list[float]) -> None:
    parts = divide(total, targets)
    assert sum(parts) == total
    weights = [Fraction(target) for target in targets]
    assert all(abs(part - total * weight / sum(weights)) < 1 for part, weight in zip(parts, weights, strict=True))


def test_remainders_go_to_the_largest_and_then_to_the_first() -> None:
    assert divide(10, [1, 1, 1]) == (4, 3, 3)
    assert divide(5, [1, 2, 1]) == (1, 3, 1)


# --- a model's outline ---


@pytest.mark.parametrize(
    ("question", "text", "titles", "chained"),
    [
        ("Write about whales", "1. Body\n2. Food\n", ["Body", "Food"], True),
        ("Give me tips for sleep", "1. **Light**: dim it\n2) Noise.\n", ["Light: dim it", "Noise"], False),
        ("A novel", "Chapter 1: The ship\nChapter 2: The storm", ["The ship", "The storm"], True),
        ("A novel", "Sure.\n- a\n- b", [], True),
        ("A novel", "1. only one", [], True),
        ("A novel", "\n".join(f"{i}. p{i}" for i in range(1, 30)), [f"p{i}" for i in range(1, 13)], True),
        ("A novel", "1. \n2. \n", [], True),
    ],
)
def test_outlines(question: str, text: str, titles: list[str], chained: bool) -> None:
    plan = read_outline(question, text)
    if not titles:
        assert plan == OPEN
        return
    assert [node.title for node in plan.nodes] == titles
    assert plan.nodes[1].depends_on == ((0,) if chained else ())


@given(st.text())
def test_any_outline_is_read(text: str) -> None:
    assert read_outline("x", text).nodes


# --- prompts ---


def test_a_note_stands_at_the_end_of_the_question() -> None:
    messages = (Message("system", "s"), Message("user", "old"), Message("assistant", "a"), Message("user", "new"))
    conversation = Conversation.of(messages, lambda each: [len(each)])
    plan = topological_segment("", [{"title": "Sea"}, {"title": "Land?", "goal": "Say  why", "depends_on": [0]}])
    note = node_note(plan, 1)
    assert note == "Write only part 2 of 2: Land? Say why. Go on from the parts before it, and do not repeat them."
    assert noted(conversation, note) == (*messages[:3], Message("user", f"new\n\n{note}"))
    assert noted(conversation, node_note(OPEN, 0)) == messages


@pytest.mark.parametrize(
    ("before", "heading", "after", "between"),
    [
        ("", "", "x", ""),
        ("", "# H", "x", "# H\n\n"),
        ("a", "", "x", "\n\n"),
        ("a\n", "", "x", "\n"),
        ("a\n", "", "\nx", ""),
        ("a\n\n\n", "", "x", ""),
        ("a", "# H", "\n\nx", "\n\n# H\n\n"),
    ],
)
def test_joints(before: str, heading: str, after: str, between: str) -> None:
    assert joint(before, heading, after) == between


PROGRAM = """
import json, sys
from dataclasses import asdict
from ghostkv.protocol.plan import topological_segment
print(json.dumps([asdict(topological_segment(prompt, "auto")) for prompt in json.load(sys.stdin)]))
"""


def test_plans_do_not_depend_on_the_process() -> None:
    prompts = json.dumps([gold.prompt for gold in SPLIT])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=prompts,
            capture_output=True,
            text=True,
            check=True,
            env={
                "PYTHONHASHSEED": seed,
                "LC_ALL": "C.UTF-8",
                "TZ": zone,
                "PYTHONPATH": ":".join(filter(None, sys.path)),
            },
        ).stdout
        for seed, zone in (("1", "UTC"), ("77", "Asia/Tokyo"))
    }
    assert len(outputs) == 1
