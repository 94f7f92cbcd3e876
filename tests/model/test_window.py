"""`sink_window` inside the engine, against StreamingLLM's definition computed token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from checkpoints import write_hf_checkpoint
from ghostkv.kv.ring import Ring
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.runner import ModelRunner, RunnerLimits
from ghostkv.model.threads import compute
from ghostkv.model.torch_ops import TorchOps
from ghostkv.request import Sampling, SegmentRequest, Window
from ghostkv.residency import policy
from ghostkv.residency.sink_window import SinkWindow
from ghostkv.step import Draw, Row, StepPlan
from model.lab import GREEDY, ROWS, SEQUENCES, Lab, Run, renamed, request, same_bits, score
from model.window_reference import reference_logits

SEEDED = Sampling(temperature=0.9, top_p=0.95, seed=11)
WINDOWS = [Window(4, 20), Window(0, 16), Window(17, 33), Window(4, 1), Window(40, 60)]


def under(window: Window, value: SegmentRequest) -> SegmentRequest:
    return replace(value, residency=SinkWindow(sinks=window.sinks, window=window.recent))


def some_ids(lab: Lab, count: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, lab.shape.vocab, count).tolist()
    return ids


@pytest.fixture(scope="module")
def narrow(small_hf: Path) -> Lab:
    return Lab(small_hf, torch.float32)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Heads of 128, five query heads per KV head, a context of 512."""
    return Lab(wide_path(tmp_path_factory.mktemp("wide")), torch.float32)


def wide_path(directory: Path) -> Path:
    return write_hf_checkpoint(
        directory / "model", hidden=200, heads=5, kv_heads=1, intermediate=300, layers=2, head_size=128
    )


def check_against_reference(lab: Lab, path: Path, window: Window, prompt: int, answer: int) -> None:
    """Greedy ids and every logits row of a request that has a pool of exactly its blocks to itself."""
    subject = under(window, request("subject", some_ids(lab, prompt), answer))
    run = lab.engine(blocks=Ring(window).blocks).run([subject])
    ids = [*subject.prompt, *run.ids["subject"]]
    weights = open_checkpoint(path).weights(torch.float32)
    expected = reference_logits(weights, lab.shape, ids[:-1], window.sinks, window.recent)
    rows = run.rows("subject")
    assert sorted(rows) == list(range(prompt, prompt + answer))
    for at, found in rows.items():
        assert (found - expected[at - 1]).abs().max() < 1e-3
        assert ids[at] == int(expected[at - 1].argmax())
    assert run.finish["subject"].usage.resident_tokens == min(window.size, len(ids) - 1)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("prompt", [3, 90])
def test_the_definition(narrow: Lab, small_hf: Path, window: Window, prompt: int) -> None:
    check_against_reference(narrow, small_hf, window, prompt, 24)


def test_the_definition_with_other_heads(wide: Lab, tmp_path: Path) -> None:
    check_against_reference(wide, wide_path(tmp_path), Window(4, 20), 90, 24)


def test_the_definition_on_the_real_model(smollm2_path: Path) -> None:
    lab = Lab(smollm2_path, torch.float32)
    check_against_reference(lab, smollm2_path, Window(4, 24), 70, 8)


def test_two_hundred_steps_of_which_most_evict(narrow: Lab, small_hf: Path) -> None:
    """D18. Rotary on a part of a head is no case of it: a checkpoint that wants it is refused (test_loaders_shape)."""
    check_against_reference(narrow, small_hf, Window(4, 28), 20, 200)


def test_past_the_context(narrow: Lab, small_hf: Path) -> None:
    assert narrow.shape.context == 512
    check_against_reference(narrow, small_hf, Window(4, 40), 530, 8)


def test_while_all_is_seen_it_is_full(narrow: Lab) -> None:
    """Up to rounding with 4 sinks; bit for bit in float32 where the sinks fill whole blocks, as the sums then agree."""
    plain = request("subject", some_ids(narrow, 50), 14)
    full = narrow.engine().run([plain])
    for window, exact in ((Window(4, 60), False), (Window(16, 48), True), (Window(0, 64), True)):
        run = narrow.engine().run([under(window, plain)])
        assert run.ids == full.ids
        assert same_bits(run.rows("subject"), full.rows("subject")) or not exact
        for at, row in run.rows("subject").items():
            assert (row - full.logits["subject", at]).abs().max() < 1e-4


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16, torch.int8], ids=str)
def lab(request: pytest.FixtureRequest, small_hf: Path) -> Lab:
    """int8 stands for KV in digits."""
    return Lab(small_hf, torch.float32 if request.param is torch.int8 else request.param, kv_dtype=request.param)


@pytest.fixture(scope="module")
def subject(lab: Lab) -> SegmentRequest:
    return under(Window(4, 37), replace(request("subject", some_ids(lab, 100), 20), sampling=SEEDED))


@pytest.fixture(scope="module")
def alone(lab: Lab, subject: SegmentRequest) -> Run:
    return lab.engine().run([subject])


@pytest.mark.parametrize("chunk", [1, 7, 24, 64])
def test_bits_do_not_depend_on_chunks(lab: Lab, subject: SegmentRequest, alone: Run, chunk: int) -> None:
    run = lab.engine(step_tokens=chunk, sequences=1).run([subject])
    assert same_bits(run.rows("subject"), alone.rows("subject"))


@pytest.mark.parametrize("every", [0, 1, 2])
def test_bits_do_not_depend_on_neighbours(lab: Lab, subject: SegmentRequest, alone: Run, every: int) -> None:
    """Neither its own nor those of the ordinary requests beside it."""
    crowd = [request(f"plain{i}", some_ids(lab, 3 + 9 * i, i), 3 + i) for i in range(8)]
    windowed = [under(window, request(f"windowed{i}", some_ids(lab, 90, i), 5 + i)) for i, window in enumerate(WINDOWS)]
    ordinary = lab.engine().run(crowd)
    run = lab.engine().run([*crowd[:4], subject, *windowed, *crowd[4:]], every=every)
    assert same_bits(run.rows("subject"), alone.rows("subject"))
    assert all(same_bits(run.rows(other.id), ordinary.rows(other.id)) for other in crowd)


def test_bits_do_not_depend_on_threads(lab: Lab, small_hf: Path, subject: SegmentRequest, alone: Run) -> None:
    single = Lab(small_hf, lab.dtype, kv_dtype=lab.kv_dtype, threads=1)
    assert same_bits(single.engine().run([subject]).rows("subject"), alone.rows("subject"))


def test_what_a_past_user_of_the_blocks_left_is_not_seen(lab: Lab, subject: SegmentRequest, alone: Run) -> None:
    engine = lab.engine(blocks=12)
    for layer in engine.runner._kv.layers:
        layer.keys.fill_(torch.nan if layer.scales is None else 127)
        layer.values.fill_(torch.nan if layer.scales is None else 127)
        if layer.scales is not None:
            layer.scales.fill_(torch.nan)
    assert same_bits(engine.run([subject]).rows("subject"), alone.rows("subject"))


def test_its_blocks_are_no_prefix_and_it_finds_none(narrow: Lab) -> None:
    plain = request("plain", some_ids(narrow, 80), 4)
    windowed = under(Window(4, 200), renamed(plain, "windowed"))
    for first, second in ((plain, windowed), (windowed, plain), (windowed, renamed(windowed, "again"))):
        engine = narrow.engine()
        engine.run([first])
        assert engine.scheduler.pool.cached == (5 if first is plain else 0)
        assert engine.run([second]).finish[second.id].usage.cached_tokens == 0


def test_the_blocks_are_as_many_at_every_step(narrow: Lab) -> None:
    engine, window = narrow.engine(), Window(4, 40)
    engine.add(under(window, request("subject", some_ids(narrow, 100), 40)))
    live = set()
    while not engine.idle:
        engine.scheduler.check_integrity()
        engine.step()
        live.add(engine.scheduler.occupancy().live_blocks)
    assert live == {Ring(window).blocks, 0} == {6, 0}


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_scores(narrow: Lab, small_hf: Path, window: Window) -> None:
    ids = some_ids(narrow, 120)
    weights = open_checkpoint(small_hf).weights(torch.float32)
    expected = reference_logits(weights, narrow.shape, ids, window.sinks, window.recent).log_softmax(dim=-1)
    table = np.arange(Ring(window).blocks, dtype=np.int32)[::-1].copy()
    found = score(narrow.runner(len(table)), ids, 10, table, window)
    assert found == pytest.approx([float(expected[at - 1, ids[at]]) for at in range(10, 120)], abs=1e-3)


@pytest.mark.parametrize(("kv_dtype", "tolerance"), [(torch.float32, 1e-4), (torch.int8, 2e-2)])
def test_plain_torch_gives_the_same_logits(narrow: Lab, kv_dtype: torch.dtype, tolerance: float) -> None:
    window, draws = Window(4, 20), (Draw(GREEDY, 0.0),)
    tables = np.arange(5, dtype=np.int32), np.arange(5, 14, dtype=np.int32)
    ids = some_ids(narrow, 100), some_ids(narrow, 100, 1)
    plans: list[StepPlan] = []
    at = 0
    while at < 100:
        end = min(Ring(window).chunk_end(at), 100)
        rows = [Row("w", tuple(ids[0][at:end]), at, tables[0], draws, window=window)]
        plans.append(StepPlan(len(plans), 0.0, (*rows, Row("p", tuple(ids[1][at:end]), at, tables[1], draws))))
        at = end
    found = []
    for ops in (narrow.ops, TorchOps()):
        kv = KVTensors(narrow.shape, 14, kv_dtype, torch.device("cpu"))
        runner = ModelRunner(narrow.model, kv, ops, RunnerLimits(ROWS, SEQUENCES, 1))
        with compute(1):
            found.append([runner.forward(plan).clone() for plan in plans])
    for ours, plain in zip(*found, strict=True):
        assert (ours - plain).abs().max() < tolerance * plain.abs().max()


def test_the_policy() -> None:
    assert policy("sink_window") == SinkWindow() and policy("sink_window").visible == Window(4, 256)
    assert policy("sink_window").budget is None
