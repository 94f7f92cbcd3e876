"""Plans, verdicts, boundaries and refusals, example by example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fakes import (
    BoundaryRule,
    ByteDetokenizer,
    EndRule,
    FixedResidency,
    ScriptedRunner,
    StringRule,
    VirtualClock,
    history_script,
)
from ghostkv.engine.admission import Limits
from ghostkv.engine.engine import Engine
from ghostkv.engine.scheduler import Scheduler
from ghostkv.engine.stats import StepTrace
from ghostkv.errors import ConfigError, ContextLengthExceeded, InvalidRequest, InvariantViolation, Overloaded
from ghostkv.kv.pool import BlockPool
from ghostkv.request import (
    CONTINUE,
    BoundaryMark,
    BoundaryView,
    Decision,
    Delta,
    FinishReason,
    GenerationState,
    Rule,
    Sampling,
    SegmentRequest,
    Stop,
    Verdict,
)
from ghostkv.step import Draw, StepPlan, StepResult

GREEDY = Sampling(temperature=0)
KEEP = FixedResidency()


class Bench:
    """An engine over scripted tokens, with every plan and trace at hand."""

    def __init__(
        self,
        text: str = "",
        blocks: int = 64,
        script: Callable[[tuple[int, ...], Draw], int] | None = None,
        **limits: int,
    ) -> None:
        self.clock = VirtualClock()
        self.pool = BlockPool(blocks)
        self.traces: list[StepTrace] = []
        runner = ScriptedRunner(blocks, script or (lambda history, draw: ord(text[draw_index(history)])), self.clock)
        self.plans = runner.plans
        self.scheduler = Scheduler(self.pool, Limits(**{"max_context": 4096, **limits}), ByteDetokenizer())
        self.engine = Engine(self.scheduler, runner, self.clock, self.traces.append)

    def all(self) -> list[Delta]:
        deltas: list[Delta] = []
        while not self.engine.idle:
            deltas += self.engine.step()
        self.engine.step()  # checks the books
        assert self.pool.referenced == 0
        return deltas

    def rows(self) -> list[list[tuple[str, int, int, bool]]]:
        return [[(r.request_id, r.start, len(r.tokens), bool(r.draws)) for r in plan.rows] for plan in self.plans]


def draw_index(history: tuple[int, ...]) -> int:
    """Index of the next output token where every prompt is one token long."""
    return len(history) - 1


def request(
    name: str = "r",
    prompt: int | tuple[int, ...] = 1,
    remaining: int = 8,
    residency: FixedResidency = KEEP,
    sampling: Sampling = GREEDY,
    rules: tuple[Rule, ...] = (),
    emitted: int = 0,
) -> SegmentRequest:
    ids = tuple(range(prompt)) if isinstance(prompt, int) else prompt
    return SegmentRequest(name, ids, sampling, GenerationState(emitted=emitted, rules=rules), residency, remaining)


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[Delta]) -> str:
    return "".join(chr(token.id) for delta in deltas for token in delta.tokens)


# --- plan ---


def test_decodes_first_then_prefill_in_chunks_then_admission() -> None:
    bench = Bench(script=history_script(50), step_tokens=10, max_sequences=3)
    bench.engine.add(request("a", 4, remaining=6))
    bench.engine.add(request("b", tuple(range(100, 125)), remaining=2))
    bench.engine.add(request("c", tuple(range(200, 203)), remaining=2))
    bench.engine.add(request("d", tuple(range(300, 302)), remaining=1))
    bench.all()
    assert bench.rows() == [
        [("a", 0, 4, True), ("b", 0, 6, False)],
        [("a", 4, 1, True), ("b", 6, 9, False)],
        [("a", 5, 1, True), ("b", 15, 9, False)],
        [("a", 6, 1, True), ("b", 24, 1, True), ("c", 0, 3, True)],  # d waits: three are running
        [("a", 7, 1, True), ("b", 25, 1, True), ("c", 3, 1, True)],
        [("a", 8, 1, True), ("d", 0, 2, True)],
    ]


def test_the_line_is_not_overtaken() -> None:
    """A small request behind a large one waits, though it would fit."""
    bench = Bench(script=history_script(50), blocks=4)
    bench.engine.add(request("a", 16, remaining=17))  # 2 blocks
    bench.engine.add(request("large", tuple(range(100, 148)), remaining=1))  # 3 blocks
    bench.engine.add(request("small", tuple(range(200, 203)), remaining=1))
    order = [delta.request_id for delta in bench.all() if delta.finish is not None]
    assert order == ["a", "large", "small"]


def test_an_answer_that_has_begun_goes_before_those_that_have_not() -> None:
    """At a segment's end its session would otherwise wait behind every newcomer, or be turned away in mid-answer."""
    bench = Bench(script=history_script(50), max_sequences=1, max_waiting=2)
    bench.engine.add(request("new1", remaining=2))
    bench.engine.add(request("new2", remaining=2))
    with pytest.raises(Overloaded):
        bench.engine.add(request("new3", remaining=2))
    bench.engine.add(request("next1", remaining=2, emitted=5))
    bench.engine.add(request("next2", remaining=2, emitted=9))
    with pytest.raises(InvalidRequest, match="already"):
        bench.engine.add(request("next1", remaining=2, emitted=5))
    order = [delta.request_id for delta in bench.all() if delta.finish is not None]
    assert order == ["next1", "next2", "new1", "new2"]


def test_a_second_prompt_starts_at_its_cached_blocks() -> None:
    bench = Bench(script=history_script(50))
    bench.engine.add(request("a", 40, remaining=1))
    bench.all()
    bench.engine.add(request("b", 40, remaining=1))
    [last] = bench.all()
    assert bench.rows()[-1] == [("b", 32, 8, True)]
    assert last.finish is not None and last.finish.usage.cached_tokens == 32


def test_draws() -> None:
    """Uniforms are keyed by the session's output, terminators masked until min_tokens, counts shown if penalised."""
    sampling = Sampling(seed=5, min_tokens=4, terminators=(9,))
    seen: list[tuple[float, tuple[int, ...], bool]] = []

    def script(history: tuple[int, ...], draw: Draw) -> int:
        seen.append((draw.uniform, draw.masked, draw.counts is None))
        return 65

    for emitted in (0, 3):
        bench = Bench(script=script)
        bench.engine.add(request(sampling=sampling, remaining=6 - emitted, emitted=emitted))
        bench.all()
    whole, resumed = seen[:6], seen[6:]
    assert resumed == whole[3:]
    assert [masked for _, masked, _ in whole] == [(9,)] * 4 + [()] * 2
    assert len({number for number, _, _ in whole}) == 6
    assert all(hidden for _, _, hidden in whole)


def test_counts_of_a_penalised_draw() -> None:
    seen: list[dict[int, int]] = []

    def script(history: tuple[int, ...], draw: Draw) -> int:
        assert draw.counts is not None and draw.client_ids == {3}
        seen.append(dict(draw.counts))
        return 65 + len(history) % 2

    bench = Bench(script=script)
    penalised = replace(request(sampling=Sampling(frequency_penalty=1), remaining=3), prompt=(1, 2))
    state = GenerationState(client_ids=frozenset({3}), counts=((65, 2), (70, 1)))
    bench.engine.add(replace(penalised, state=state))
    deltas = bench.all()
    assert seen == [{65: 2, 70: 1}, {65: 3, 70: 1}, {65: 3, 66: 1, 70: 1}]
    assert deltas[-1].finish is not None
    assert deltas[-1].finish.state.counts == ((65, 4), (66, 1), (70, 1))


# --- commit: text and verdicts ---


def test_length_releases_everything() -> None:
    bench = Bench("ab<e")
    bench.engine.add(request(remaining=4, rules=(StringRule("<end>"),)))
    deltas = bench.all()
    assert [delta.text for delta in deltas] == ["a", "b", "", "<e"]
    assert deltas[-1].finish is not None and deltas[-1].finish.reason is FinishReason.LENGTH
    assert deltas[-1].finish.state.held == ""


def test_stop_string_is_dropped_and_a_false_start_is_not() -> None:
    bench = Bench("a<ex<end>z")
    bench.engine.add(request(remaining=10, rules=(StringRule("<end>"),)))
    deltas = bench.all()
    assert text_of(deltas) == "a<ex" and ids_of(deltas) == "a<ex<end>"
    assert [delta.text for delta in deltas[:4]] == ["a", "", "", "<ex"]
    assert deltas[-1].finish is not None and deltas[-1].finish.reason is FinishReason.STOP


def test_the_longest_hold_counts() -> None:
    bench = Bench("abcX")
    bench.engine.add(request(remaining=4, rules=(StringRule("abz"), StringRule("bcdd"), StringRule("q"))))
    assert [delta.text for delta in bench.all()] == ["", "", "a", "bcX"]


def test_an_incomplete_character_at_the_end() -> None:
    """Flushed where the answer ends there; dropped where it follows a stop string."""
    emoji = "🌋".encode()
    for tail, rules, expected in (
        (b"a" + emoji[:2], (), "a\ufffd"),
        (b"a" + emoji, (), "a🌋"),
    ):
        bench = Bench(script=lambda history, draw, tail=tail: tail[draw_index(history)])  # type: ignore[misc]
        bench.engine.add(request(remaining=len(tail), rules=rules))
        assert text_of(bench.all()) == expected
    words = {1: b"ok", 2: b"STOP" + emoji[:2]}
    bench = Bench(script=lambda history, draw: 1 + draw_index(history))
    bench.scheduler._detokenizer = ByteDetokenizer(words)
    bench.engine.add(request(remaining=9, rules=(StringRule("STOP"),)))
    assert text_of(bench.all()) == "ok"


@pytest.mark.parametrize(
    ("rules", "reason", "text"),
    [
        ((BoundaryRule(frozenset({3})), StringRule("bc")), FinishReason.STOP, "a"),
        ((StringRule("bc"), EndRule(ord("c"))), FinishReason.STOP, "a"),  # the first Stop in order
        ((EndRule(ord("c")), StringRule("bc")), FinishReason.STOP, "abc"),
        ((BoundaryRule(frozenset({3})),), FinishReason.FLUSH, "abc"),
        ((), FinishReason.FLUSH, "abc"),
    ],
)
def test_the_strongest_verdict_wins(rules: tuple[Rule, ...], reason: FinishReason, text: str) -> None:
    bench = Bench("abcdef")
    bench.engine.add(request(remaining=6, rules=rules, residency=FixedResidency(Decision.FLUSH, block=3)))
    deltas = bench.all()
    assert deltas[-1].finish is not None and deltas[-1].finish.reason is reason
    assert text_of(deltas) == text
    kind = "fixed" if rules else "cap"
    expected = BoundaryMark(kind, Decision.FLUSH, "policy", at=3) if reason is FinishReason.FLUSH else None
    assert deltas[-1].boundary == expected


def test_a_boundary_on_the_last_allowed_token_is_none() -> None:
    residency = FixedResidency(Decision.FLUSH)
    bench = Bench("abc")
    bench.engine.add(request(remaining=3, rules=(BoundaryRule(frozenset({3})),), residency=residency))
    deltas = bench.all()
    assert deltas[-1].finish is not None and deltas[-1].finish.reason is FinishReason.LENGTH
    assert residency.seen == [] and all(delta.boundary is None for delta in deltas)


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    bench = Bench("abc")
    bench.engine.add(request(remaining=3, rules=(EndRule(ord("c")),)))
    last = bench.all()[-1]
    assert last.finish is not None and last.finish.reason is FinishReason.STOP


def test_a_rule_that_drops_what_is_gone_is_a_fault() -> None:
    class Careless:
        held = 0

        def feed(self, token_id: int, piece: str) -> tuple[Rule, Verdict]:
            return self, Stop(FinishReason.STOP, drop=2) if piece == "c" else CONTINUE

    bench = Bench("abc")
    bench.engine.add(request(remaining=3, rules=(Careless(),)))
    with pytest.raises(InvariantViolation, match="drops 2 characters of which only 1"):
        bench.all()


# --- boundaries ---


def test_kept_boundaries_extend_the_reservation_only_when_it_is_used_up() -> None:
    residency = FixedResidency(Decision.KEEP, block=16)
    bench = Bench("x" * 40, blocks=3)
    bench.engine.add(request(remaining=40, rules=(BoundaryRule(frozenset({5, 16})),), residency=residency))
    deltas = bench.all()
    marks = [(n, d.boundary.kind, d.boundary.decision) for n, d in enumerate(deltas, 1) if d.boundary is not None]
    assert marks == [(5, "fixed", Decision.KEEP), (16, "fixed", Decision.KEEP), (32, "cap", Decision.KEEP)]
    assert [trace.live_blocks for trace in bench.traces] == [1] * 16 + [2] * 16 + [3] * 8
    assert residency.seen == [
        BoundaryView(
            "fixed", resident=5, generated=5, unreserved=24, free_blocks=2, waiting=0, reserved=11, max_wait_s=10
        ),
        BoundaryView("fixed", 16, generated=16, unreserved=24, free_blocks=2, waiting=0, max_wait_s=10),
        BoundaryView("cap", 32, generated=32, unreserved=8, free_blocks=1, waiting=0, max_wait_s=10),
    ]


def test_what_cannot_be_extended_is_flushed() -> None:
    bench = Bench("x" * 40, blocks=2)
    bench.engine.add(request(remaining=40, residency=FixedResidency(Decision.KEEP, block=16)))
    deltas = bench.all()
    assert len(deltas) == 32
    assert deltas[15].boundary == BoundaryMark("cap", Decision.KEEP, at=16)
    assert deltas[31].boundary == BoundaryMark("cap", Decision.FLUSH, "memory", at=32)
    finish = deltas[31].finish
    assert finish is not None and finish.reason is FinishReason.FLUSH and finish.state.emitted == 32
    assert finish.usage.resident_tokens == 32  # prompt 1 + 31: the last token was never an input


def test_no_extension_beyond_the_context() -> None:
    bench = Bench("x" * 40, max_context=21)
    bench.engine.add(request(remaining=40, residency=FixedResidency(Decision.KEEP, block=16)))
    deltas = bench.all()
    assert len(deltas) == 20 and deltas[15].boundary == BoundaryMark("cap", Decision.KEEP, at=16)
    assert deltas[-1].boundary == BoundaryMark("cap", Decision.FLUSH, "context", at=20)


def test_a_flush_leaves_full_blocks_behind_and_returns_the_state() -> None:
    rules = (StringRule("<end>"), BoundaryRule(frozenset({33})))
    bench = Bench("x" * 31 + "<e" + "y" * 9)
    bench.engine.add(request(remaining=40, rules=rules, residency=FixedResidency(Decision.FLUSH), sampling=GREEDY))
    deltas = bench.all()
    assert text_of(deltas) == "x" * 31
    finish = deltas[-1].finish
    assert finish is not None
    assert finish.state == GenerationState(
        emitted=33,
        counts=((ord("<"), 1), (ord("e"), 1), (ord("x"), 31)),
        held="<e",
        rules=(StringRule("<end>", "<e"), BoundaryRule(frozenset({33}), 33)),
    )
    assert (bench.pool.cached, bench.pool.referenced) == (2, 0)


# --- refusals, cancellation, accounts ---


@pytest.mark.parametrize(
    ("prompt", "remaining", "blocks", "context", "fits"),
    [
        (60, 5, 4, 4096, True),  # 64 slots
        (60, 6, 4, 4096, False),
        (60, 5, 64, 65, True),
        (60, 5, 64, 64, False),
    ],
)
def test_a_request_that_can_never_fit(prompt: int, remaining: int, blocks: int, context: int, fits: bool) -> None:
    bench = Bench(script=history_script(5), blocks=blocks, max_context=context)
    asked = request(prompt=prompt, remaining=remaining)
    if fits:
        bench.engine.add(asked)
        assert len(bench.all()) == remaining
        return
    limit = min(blocks * 16 + 1, context)
    with pytest.raises(ContextLengthExceeded) as error:
        bench.engine.add(asked)
    assert error.value.message.startswith(
        f"This model's maximum context length is {limit} tokens, but the request needs {prompt + remaining} "
        f"({prompt} in the prompt, {remaining} for the answer): context_length_exceeded, "
        f"it exceeds the available context size."
    )
    assert f"the pool has {blocks}" in error.value.message
    assert bench.engine.idle and bench.engine.stats.refused == 1


def test_other_refusals() -> None:
    bench = Bench("abcdef", max_waiting=2)
    with pytest.raises(InvalidRequest, match="empty"):
        bench.engine.add(request(prompt=()))
    with pytest.raises(InvalidRequest, match="negative"):
        bench.engine.add(request(remaining=-1))
    bench.engine.add(request("a"))
    with pytest.raises(InvalidRequest, match="already"):
        bench.engine.add(request("a"))
    bench.engine.add(request("b"))
    with pytest.raises(Overloaded, match="2 requests are waiting"):
        bench.engine.add(request("c"))
    assert (bench.engine.stats.added, bench.engine.stats.refused) == (2, 4)


@pytest.mark.parametrize(
    "limits", [{"max_context": 1}, {"max_sequences": 0}, {"max_waiting": 0}, {"step_tokens": 8, "max_sequences": 9}]
)
def test_limits_that_never_work(limits: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Limits(**{"max_context": 64, **limits})


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_wait_that_is_no_time_is_refused_by_name(seconds: float) -> None:
    with pytest.raises(ConfigError, match="max_wait_s must be at least 0 seconds"):
        Limits(64, max_wait_s=seconds)


def test_cancel_waiting_running_and_unknown() -> None:
    bench = Bench("abcdefgh", max_sequences=1)
    bench.engine.add(request("a", rules=(StringRule("cx"),)))
    bench.engine.add(request("b"))
    for _ in range(3):
        bench.engine.step()
    running, waiting = bench.engine.cancel("a"), bench.engine.cancel("b")
    assert running is not None and running.finish is not None and running.text == ""
    assert running.finish.reason is FinishReason.CANCELLED
    assert running.finish.state.emitted == 3 and running.finish.state.held == "c"
    assert waiting is not None and waiting.finish is not None
    assert waiting.finish.usage.queue_s == pytest.approx(0.03) and waiting.finish.usage.generated_tokens == 0
    assert bench.engine.cancel("a") is None and bench.engine.idle
    bench.all()


def test_a_request_cancelled_while_its_step_runs() -> None:
    scheduler = Scheduler(BlockPool(8), Limits(64), ByteDetokenizer())
    runner = ScriptedRunner(8, lambda history, draw: 65 + history[0])
    scheduler.add(request("a", (1,)), 0.0)
    scheduler.add(request("b", (2,)), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    result = runner.run(plan)
    scheduler.cancel("a", 0.0)
    [delta] = scheduler.commit(plan, result)
    assert delta.request_id == "b" and delta.text == "C"
    scheduler.check_integrity()


def test_commit_refuses_another_plan_or_a_wrong_number_of_tokens() -> None:
    scheduler = Scheduler(BlockPool(8), Limits(64), ByteDetokenizer())
    assert scheduler.plan(0.0) is None
    scheduler.add(request("a"), 0.0)
    plan = scheduler.plan(0.0)
    assert plan is not None
    with pytest.raises(InvariantViolation, match="1 draws and 0 rows to score is committed with 0 tokens"):
        scheduler.commit(plan, StepResult((), 0.0))
    scheduler.plan(0.0)
    with pytest.raises(InvariantViolation, match="the latest plan is step 1"):
        scheduler.commit(plan, ScriptedRunner(8, lambda history, draw: 65).run(plan))


def test_usage_and_trace() -> None:
    bench = Bench(script=history_script(50), step_tokens=8, max_sequences=1)
    bench.engine.add(request("a", 10, remaining=3))
    bench.engine.add(request("b", 2, remaining=1))
    usage = {d.request_id: d.finish.usage for d in bench.all() if d.finish is not None}
    a, b = usage["a"], usage["b"]
    assert (a.prompt_tokens, a.generated_tokens, a.resident_tokens) == (10, 3, 12)
    assert (a.queue_s, a.prefill_s, a.decode_s) == pytest.approx((0.0, 0.02, 0.02))
    assert (b.queue_s, b.prefill_s, b.decode_s) == pytest.approx((0.04, 0.01, 0.0))
    assert bench.traces[0] == StepTrace(0, 0.0, 0.01, 0, 8, 1, 1, 1, 0, 63)
    assert [(t.decode_rows, t.prefill_tokens) for t in bench.traces] == [(0, 8), (0, 2), (1, 0), (1, 0), (0, 2)]
    stats = bench.engine.stats
    assert (stats.steps, stats.prefill_tokens, stats.decode_tokens, stats.generated_tokens) == (5, 12, 2, 4)
    assert dict(stats.finished) == {"length": 2} and stats.peak_live_blocks == 1


def test_waiting_for_blocks_is_counted_once_and_only_for_the_first_in_line() -> None:
    """Each needs all four blocks."""
    bench = Bench(script=history_script(50), blocks=4)
    for name in "abc":
        bench.engine.add(request(name, 33, remaining=32))
    bench.engine.step()
    assert bench.engine.stats.waits_for_memory == 1  # b; c is not looked at
    for _ in range(5):
        bench.engine.step()
    assert bench.engine.stats.waits_for_memory == 1
    bench.engine.cancel("b")
    bench.engine.step()
    assert bench.engine.stats.waits_for_memory == 2
    bench.all()
    assert bench.engine.stats.waits_for_memory == 2


def test_waiting_for_a_place_in_the_step_is_no_waiting_for_blocks() -> None:
    bench = Bench(script=history_script(50), max_sequences=1)
    for name in "abc":
        bench.engine.add(request(name, 33, remaining=4))
    bench.all()
    assert bench.engine.stats.waits_for_memory == 0


def test_a_stuck_engine_is_a_fault_and_no_sleep() -> None:
    """Cannot happen while the books are right, so break them: blocks that nobody holds."""
    bench = Bench("abc", blocks=4)
    bench.pool._free.clear()
    bench.engine.add(request())
    with pytest.raises(InvariantViolation, match="nothing can run"):
        bench.engine.step()


def test_plans_are_numbered() -> None:
    bench = Bench("abc")
    bench.engine.add(request(remaining=3))
    bench.all()
    plans: list[StepPlan] = bench.plans
    assert [plan.index for plan in plans] == [0, 1, 2]
