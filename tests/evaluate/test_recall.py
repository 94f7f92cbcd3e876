"""The recall test, asked of a backend that answers from its prompt alone: what it can know, and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import pytest

from fakes import CHATML_TEMPLATE, byte_tokenizer, fake_capabilities
from ghostkv.backends.base import Capabilities
from ghostkv.config import EngineConfig
from ghostkv.evaluate.answers import contains
from ghostkv.evaluate.arms import CONTINUED, DIRECT, PARAPHRASE, FactsAlone, History, LastTokens, RecallArm, Segmented
from ghostkv.evaluate.compare import paired, summary
from ghostkv.evaluate.documents import Shape
from ghostkv.evaluate.lab import Lab
from ghostkv.evaluate.recall import Outcome, Plan, ask
from ghostkv.evaluate.subjects import SUBJECT_TYPES
from ghostkv.request import Delta, Finish, FinishReason, SegmentRequest, SegmentUsage, Token, Window
from ghostkv.residency import SegmentBudget, policy
from ghostkv.residency.sink_window import SinkWindow
from ghostkv.session.context import TurnContext
from ghostkv.session.worker import Worker
from ghostkv.text.template import ChatTemplate

TOKENIZER = byte_tokenizer()
TEMPLATE = ChatTemplate(CHATML_TEMPLATE, TOKENIZER)
SHAPE = Shape(distances=(1, 3), probes=4, changed=2, segment=800)  # one byte a token
ATTRIBUTES = [attribute for kind in SUBJECT_TYPES for attribute in kind.attributes]


def known(prompt: str) -> str:
    """The value that the prompt gives to what it asks or begins to say, and the last one it gives."""
    lines = [line for line in prompt.split("\n") if line and not line.startswith("<|")]
    asking = lines[-1] if lines[-1] != "assistant" else prompt.rpartition("user\n")[2]
    for attribute in ATTRIBUTES:
        forms = (attribute.question, attribute.paraphrase, attribute.stem + "$")
        for form in forms:
            pattern = "(?:^|\n)" + re.escape(form).replace(re.escape("{s}"), "(?P<s>[^?.]+?)").replace(r"\$", "$")
            if (match := re.search(pattern, asking)) is not None:
                said = [
                    found[1]
                    for sentence in (attribute.statement, attribute.update)
                    if sentence
                    for found in re.finditer(_pattern(sentence, match["s"]), prompt)
                ]
                return said[-1] if said else "nothing"
    return "no question"


def _pattern(sentence: str, subject: str) -> str:
    return re.escape(sentence.replace("{s}", subject)).replace(re.escape("{v}"), "(.+?)") + r"(?=\s|$)"


@dataclass
class Reader:
    """A backend that reads."""

    window: list[Window | None] = field(default_factory=list)

    def capabilities(self) -> Capabilities:
        return fake_capabilities(max_context=60_000, pool_tokens=100_000)

    async def generate(self, request: SegmentRequest) -> AsyncIterator[Delta]:
        prompt = request.prompt
        if (window := request.residency.visible) is not None:
            prompt = prompt[: window.sinks] + prompt[-window.recent :]
        text = known(TOKENIZER.decode(prompt))
        usage = SegmentUsage(len(request.prompt), 0, 1, len(request.prompt), 0, 0, 0)
        yield Delta(request.id, (Token(0),), f"It is {text}.", None, Finish(FinishReason.STOP, request.state, usage))

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        answer = known(TOKENIZER.decode(ids[:start]).rpartition("assistant\n")[0] + "assistant")
        value = TOKENIZER.decode(ids[start:]).strip()
        return [0.0 if value == answer else -1.0] * (len(ids) - start)

    def pause(self, request: SegmentRequest, ids: Sequence[int]) -> None:
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        """Nothing runs."""

    def count(self, text: str) -> int:
        return len(TOKENIZER.encode(text))


@pytest.fixture(scope="module")
def lab() -> Lab:
    context = TurnContext(
        template=TEMPLATE.render_ids,
        encode=TOKENIZER.encode,
        token_bytes=TOKENIZER.token_bytes,
        eos_ids=TOKENIZER.eos_ids,
        clock=monotonic,
    )
    return Lab(Worker("reader", "0", Reader(), TOKENIZER, context, EngineConfig(), lambda: True, lambda: None))


def outcomes(lab: Lab, *arms: RecallArm, **plan: Any) -> dict[str, list[Outcome]]:
    async def all_of_them() -> list[Outcome]:
        return [outcome async for found in ask(lab, arms, Plan(2, SHAPE, **plan)) for outcome in found]

    found: dict[str, list[Outcome]] = {arm.name: [] for arm in arms}
    for outcome in asyncio.run(all_of_them()):
        found[outcome.arm].append(outcome)
    return found


def share(found: Sequence[Outcome]) -> float:
    return sum(outcome.right for outcome in found) / len(found)


@pytest.mark.parametrize("form", [DIRECT, PARAPHRASE])
def test_a_reader_knows_what_its_prompt_says(lab: Lab, form: str) -> None:
    roomy = SegmentBudget(target=600, cap=800, tail=200, state=20_000, recall=20_000)
    found = outcomes(
        lab,
        History("full", policy("full")),
        FactsAlone(),
        LastTokens(800),
        History("window", SinkWindow(sinks=4, window=800)),
        Segmented("other", roomy, shows="other"),
        History("wrong", policy("full"), shows="wrong"),
        forms=(form,),
    )
    assert all(len(each) == 2 * 2 * 4 for each in found.values())
    assert share(found["full"]) == share(found["facts alone"]) == 1
    near = [outcome for outcome in found["last tokens"] if outcome.distance == 1]
    assert 0 < share(near) < 1 and share([o for o in found["last tokens"] if o.distance == 3]) == 0
    assert 0 < share(found["window"]) < 1
    assert share(found["other"]) == 0
    assert share(found["wrong"]) == 1  # judged by the values that it was shown
    own = {outcome.key: outcome.value for outcome in found["full"]}
    assert sum(own[outcome.key] == outcome.value for outcome in found["wrong"]) <= 1
    assert [outcome.chosen for outcome in found["full"]] == [True] * 16
    assert {outcome.chosen for outcome in found["window"]} == {None}


def test_an_open_answer_goes_on(lab: Lab) -> None:
    found = outcomes(
        lab, History("full", policy("full")), FactsAlone(), LastTokens(60), forms=(CONTINUED,), choice=False
    )
    assert share(found["full"]) == share(found["facts alone"]) == 1
    assert share(found["last tokens"]) < 0.2


def test_windows_are_asked_about_fewer_documents(lab: Lab) -> None:
    window = History("window", SinkWindow(sinks=4, window=900))
    assert {outcome.document for outcome in outcomes(lab, window, windowed=1)["window"]} == {0}


@pytest.mark.parametrize(
    ("answer", "value", "found"),
    [
        ("It is 68.2  KPA now.", "68.2 kPa", True),
        ("It is 168.2 kPa.", "68.2 kPa", False),
        ("It is 8.68.2 kPa.", "68.2 kPa", False),
        ("Version 1.2.34", "1.2.3", False),
        ("Version 1.2.3.", "1.2.3", True),
        ("Version 1.2.3.4", "1.2.3", False),
        ("Seats: 297.", "297", True),
        ("Seats: 1,297", "297", False),
        ("It is Port\nEllery", "Port Ellery", True),
        ("It is Port Ellerys", "Port Ellery", False),
        ("21.4 °C", "21.4 °C", True),
        ("at 22:53", "22:53", True),
        ("at 22:53:10", "22:53", False),
        ("KX-4417", "KX-4417", True),
        ("", "x", False),
    ],
)
def test_a_value_stands_whole_or_not_at_all(answer: str, value: str, found: bool) -> None:
    assert contains(answer, value) is found


BASE = Outcome("a", 0, 0, 1, DIRECT, False, "v", "v", True, False, None, 100, 10)


def test_arms_are_paired_question_by_question() -> None:
    ours = [replace(BASE, document=d, probe=p, right=bool(p)) for d in range(3) for p in range(3)]
    theirs = [replace(BASE, arm="full", document=d, probe=p, right=p == 1) for d in range(3) for p in (2, 1)]
    found = paired(ours, theirs)
    assert found.estimate == found.low == found.high == pytest.approx(0.5)  # probe 2 right, 1 equal; 0 unpaired


def test_a_distance_where_both_ceilings_fail_is_void() -> None:
    rows = []
    for distance, reached in ((1, (6, 8)), (5, (6, 5))):
        for arm, right in zip(("full", "facts alone", "segment"), (*reached, 3)):
            rows += [replace(BASE, arm=arm, distance=distance, document=i, right=i < right) for i in range(10)]
    found = summary(rows, ("full", "facts alone"), {name: {"n": 1} for name in ("segment", "full", "facts alone")})
    assert [(cell["distance"], cell["void"], cell["ceiling"]) for cell in found["cells"]] == [
        (1, False, "facts alone"),
        (5, True, "full"),
    ]
    segment = found["cells"][0]["arms"]["segment"]
    assert segment["exact"]["estimate"] == 0.3 and segment["difference"]["estimate"] == pytest.approx(-0.5)
    assert found["arms"]["segment"]["configuration"] == {"n": 1}
    assert found["arms"]["segment"]["mean_resident"] == 105 and found["arms"]["segment"]["peak_resident"] == 110


def test_an_arm_with_a_window_holds_no_more_than_that() -> None:
    arm = summary([replace(BASE, window=64)], (), {"a": {}})["arms"]["a"]
    assert arm["mean_resident"] == arm["peak_resident"] == 64


def test_stale_answers_are_counted_among_changed_facts() -> None:
    rows = [replace(BASE, probe=i, changed=i < 5, stale=i == 0, right=i > 0) for i in range(9)]
    arm = summary(rows, (), {"a": {}})["arms"]["a"]
    assert (arm["changed_asked"], arm["changed_right"], arm["stale"]["estimate"]) == (5, 4, 0.2)
    assert summary(rows[5:], (), {"a": {}})["arms"]["a"]["stale"] is None
