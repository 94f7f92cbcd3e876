"""Differences in nats against hand-made readings, and the arms against a backend that only counts its context."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

import pytest

from fakes import CHATML_TEMPLATE, FakeBackend, byte_tokenizer, fake_capabilities
from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError
from ghostkv.evaluate.curves import NO_SINKS, Curves, curves
from ghostkv.evaluate.lab import Lab, RawPrompt
from ghostkv.evaluate.perplexity import LastIds, Reading, Segmented, Whole, compared, held, read, scaled
from ghostkv.evaluate.texts import ASK, CHAT, FORMS, OPENING, RAW, from_recurring, passage, spread
from ghostkv.request import Window
from ghostkv.residency import SegmentBudget, policy
from ghostkv.residency.sink_window import SinkWindow
from ghostkv.session.context import TurnContext
from ghostkv.session.worker import Worker
from ghostkv.text.template import ChatTemplate

TOKENIZER = byte_tokenizer()
TEXT = " ".join(f"The keeper of lamp {i} went up the stairs and came down again." for i in range(90))
BUDGET = SegmentBudget(target=60, cap=100, tail=40, state=60, recall=30)


class Counting(FakeBackend):
    """A token's log-probability is -1 / (tokens before it that are seen)."""

    async def score(self, ids: Sequence[int], start: int, window: Window | None = None) -> list[float]:
        seen = [at if window is None else min(at, window.size) for at in range(start, len(ids))]
        return [-1 / count for count in seen]


@pytest.fixture
def lab() -> Lab:
    backend = Counting(["a"], fake_capabilities(max_context=8192, pool_tokens=20_000))
    template = ChatTemplate(CHATML_TEMPLATE, TOKENIZER)
    context = TurnContext(
        template=template.render_ids,
        encode=TOKENIZER.encode,
        token_bytes=TOKENIZER.token_bytes,
        eos_ids=TOKENIZER.eos_ids,
        clock=monotonic,
    )
    return Lab(Worker("counting", "0", backend, TOKENIZER, context, EngineConfig(), lambda: True, lambda: None))


@pytest.mark.parametrize("form", FORMS)
def test_what_each_arm_sees(lab: Lab, form: str) -> None:
    before = OPENING if form == RAW else 0
    ids = passage(lab, lab.encode(TEXT)[: before + 1000], form)
    head = OPENING if form == RAW else len(lab.render(ASK))
    segment = asyncio.run(read(lab, Segmented("segment", BUDGET), ids, ()))
    assert sum(segment.cuts) == 1000 and len(segment.cuts) > 10
    last = asyncio.run(read(lab, LastIds("last", 50), ids, segment.cuts))
    full = asyncio.run(read(lab, Whole("full", policy("full")), ids, segment.cuts))
    window = asyncio.run(read(lab, Whole("window", SinkWindow(sinks=4, window=96)), ids, segment.cuts))
    for reading in (segment, last, full, window):
        assert len(reading.logprobs) == len(reading.resident) == 1000
        assert list(reading.logprobs) == [-1 / tokens for tokens in reading.resident]
    assert list(full.resident) == list(range(head, head + 1000))
    assert list(window.resident) == [min(100, tokens) for tokens in full.resident]
    first = segment.cuts[0]
    assert segment.resident[:first] == last.resident[:first] == full.resident[:first]
    assert last.resident[first] == head + min(50, first)
    assert max(segment.resident) < head + BUDGET.carried + BUDGET.cap
    assert held([window], [90]) == (100, 100)


def test_extra_nats_by_hand() -> None:
    full = [Reading((-1.0,) * 90, (0,) * 90, ()) for _ in range(2)]
    cuts = [[10, 6, 70, 4], [20, 66, 4]]
    # Boundary b costs b + 1 at its first token and b after; tokens before the first boundary would cost 99.
    arms = []
    for lengths in cuts:
        cost = [99.0] * lengths[0]
        for boundary, length in enumerate(lengths[1:], 1):
            cost += [boundary + 1.0] + [float(boundary)] * (length - 1)
        arms.append(Reading(tuple(-1 - extra for extra in cost), tuple(range(90)), ()))
    found = compared(arms, full, cuts, [{3, 10, 11, 20}, {25, 86}])
    assert found["repeated"]["estimate"] == pytest.approx((2 + 1 + 2 + 1 + 3) / 5) and found["repeated_tokens"] == 5
    tokens = 80 + 70
    total = (6 + 140 + 12 + 3) + (66 + 8 + 2)
    assert found["tokens"] == tokens and found["boundaries"] == 5
    assert found["extra"]["estimate"] == pytest.approx(total / tokens)
    assert found["nats"] == pytest.approx(1 + total / tokens)
    assert found["by_distance"]["1-4"]["estimate"] == pytest.approx((5 + 9 + 13 + 5 + 9) / 20)
    assert found["by_distance"]["5-16"]["estimate"] == pytest.approx((2 * 1 + 12 * 2 + 12 * 1) / 26)
    assert found["by_distance"]["65+"]["estimate"] == pytest.approx((6 * 2 + 2 * 1) / 8)
    means = [1 + 1 / 6, 2 + 1 / 70, 3 + 1 / 4, 1 + 1 / 66, 2 + 1 / 4]
    x = [1, 2, 3, 1, 2]
    steep = sum((a - 1.8) * b for a, b in zip(x, means)) / sum((a - 1.8) ** 2 for a in x)
    assert found["slope"]["least_squares"]["estimate"] == pytest.approx(steep)
    assert found["slope"]["bootstrap"]["low"] > 0.5
    assert found["mean_resident"] == pytest.approx((sum(range(10, 90)) + sum(range(20, 90))) / 150)


def test_baselines_hold_as_much(lab: Lab) -> None:
    plan = Curves(targets=(60,), tails=(40, 80), boundaries=6, passages=2, texts=("prose",))
    all_of_it = asyncio.run(curves(lab, TEXT, plan, budget=BUDGET, window=lambda s, r: SinkWindow(sinks=s, window=r)))
    assert all_of_it["form"] == RAW and list(all_of_it["texts"]) == ["prose"]
    found = all_of_it["texts"]["prose"]
    assert [row["arm"] for row in found["parts"]] == [
        "full",
        "tail",
        "tail + state",
        "tail + recall",
        "segment",
        "last ids, equal mean",
        "last ids, equal peak",
        "sink window, equal mean",
        "sink window, equal peak",
        NO_SINKS,
    ]
    without, window = (
        next(row for row in found["parts"] if row["arm"] == name) for name in (NO_SINKS, "sink window, equal mean")
    )
    assert without["configuration"]["sinks"] == 0 and window["configuration"]["sinks"] == 4
    assert without["mean_resident"] == window["mean_resident"]
    for rows in (found["parts"], *(found["curves"][i : i + 7] for i in (0, 7))):
        by_arm = {row["arm"]: row for row in rows}
        segment = by_arm["segment"]
        assert segment["boundaries"] >= 2 * 6
        assert by_arm["full"]["extra"]["estimate"] == 0
        for name in ("last ids", "sink window"):
            mean, peak = by_arm[f"{name}, equal mean"], by_arm[f"{name}, equal peak"]
            assert mean["mean_resident"] == pytest.approx(segment["mean_resident"], abs=1.5)
            assert peak["peak_resident"] == pytest.approx(segment["peak_resident"], abs=1)
            assert mean["extra"]["estimate"] > peak["extra"]["estimate"] > 0
        assert {row["boundaries"] for row in rows} == {segment["boundaries"]}
    assert found["curves"][0]["tail"] == 40 and found["curves"][-1]["tail"] == 80
    assert re.match("residency segment", " ".join(map(str, next(iter(found["parts"][1]["configuration"].items())))))


def test_passages_are_spread_and_whole() -> None:
    assert spread(range(100), 3, 20) == [tuple(range(s, s + 20)) for s in (0, 40, 80)]
    assert spread(range(30), 3, 20) == [tuple(range(20))]
    with pytest.raises(ConfigError):
        spread(range(5), 1, 6)


def test_the_two_forms_of_a_passage(lab: Lab) -> None:
    ids = lab.encode(TEXT)[:300]
    raw, chat = passage(lab, ids, RAW), passage(lab, ids, CHAT)
    assert raw.asked == RawPrompt(ids[:OPENING]) and raw.ids == ids[OPENING:]
    assert (chat.asked, chat.ids) == (ASK, ids)
    for each in (raw, chat):  # every segment of every arm begins with the whole opening
        head = lab.render(each.asked)
        for arm in (Segmented("segment", BUDGET), LastIds("last", 20), Whole("full", policy("full"))):
            pieces = arm.pieces(lab, each, (100, 100, 100 - OPENING * (each is raw)))
            assert all(piece.prompt[: len(head)] == head for piece in pieces)
            assert sum((piece.ids for piece in pieces), ()) == each.ids
    last = LastIds("last", 20).pieces(lab, raw, (100, 184))[1]
    assert last.prompt == (*ids[:OPENING], *ids[OPENING + 80 : OPENING + 100])


def test_a_raw_prompt_begins_as_the_models_prompts_do(lab: Lab) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_bos, tokenizer.bos_id = True, tokenizer.eos_ids[0]
    with_bos = Lab(replace(lab.worker, tokenizer=tokenizer))
    assert passage(with_bos, range(40), RAW).asked == RawPrompt((tokenizer.eos_ids[0], *range(OPENING)))


def test_recurring_passages_are_as_long_as_asked(lab: Lab) -> None:
    for form in FORMS:
        passages = from_recurring(lab, TEXT, form, 2, 9000)
        assert [len(each.ids) for each in passages] == [9000, 9000] and passages[0] != passages[1]
        one, words = passages[0], [lab.decode((each,)) for each in passages[0].ids]
        marked = "".join(word if i in one.repeated else "|" for i, word in enumerate(words))
        rest = "".join("|" if i in one.repeated else word for i, word in enumerate(words))
        sentences = [each.strip() for each in marked.split("|") if each]
        assert len(sentences) > 10
        for sentence in sentences[:-1]:  # whole sentences, which say what was said before
            assert sentence.endswith(".") and "keeper" not in sentence
            assert sentence.rpartition(" ")[2].rstrip(".") in rest


@pytest.mark.parametrize("wrong", [{"form": "sung"}, {"texts": ("verse",)}, {"texts": ()}])
def test_unknown_forms_and_texts_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Curves(**wrong)  # type: ignore[arg-type]


def test_the_cap_follows_the_target() -> None:
    budget = SegmentBudget(target=150, cap=192, tail=64, state=64, recall=40)
    assert (scaled(budget, 32).target, scaled(budget, 32).cap, scaled(budget, 150)) == (32, 41, budget)


def test_too_many_boundaries_for_the_context_are_refused(lab: Lab) -> None:
    with pytest.raises(ConfigError, match="context"):
        asyncio.run(curves(lab, TEXT, Curves(boundaries=300), budget=BUDGET, window=None))
