"""Fleets over real engines: two precisions of one small random checkpoint behind the interface of one worker."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from ghostkv.backends.base import Backend, Load
from ghostkv.cli import app
from ghostkv.config import EngineConfig
from ghostkv.launch import open_fleet, open_worker
from ghostkv.llm import LLM
from ghostkv.request import Message, Sampling, SegmentRequest
from ghostkv.session.fleet import Fleet
from ghostkv.session.turn import Finished, Output, SegmentRecord, Turn
from ghostkv.session.worker import Worker

CONFIG = EngineConfig(dtype="float32", kv_budget=4 * 2**20, max_sequences=16, step_tokens=64)
LIGHT = (Message("user", "tell me how it went, and then how it went on"),)
DENSE = (Message("user", "Mass: 312 kg\nSeal: 88-GH-20\nDue: 12 May 2031"),)
TURN = Turn(
    "t", Sampling(temperature=0.9, seed=9), max_tokens=450, messages=LIGHT, residency="segment", ignore_eos=True
)


@pytest.fixture(scope="module")
def fleet(small_hf: Path) -> Iterator[Worker]:
    found = open_fleet(str(small_hf), CONFIG, [f"{small_hf}:bfloat16", str(small_hf)])
    yield found
    found.close()


def workers(fleet: Worker) -> list[Worker]:
    """Its members: float32, bfloat16, float32."""
    assert isinstance(fleet, Fleet)
    own = {field.name: getattr(fleet, field.name) for field in fields(Worker)}
    return [Worker(**own | {"manifest": fleet.manifest.split("+")[0]}), *fleet.others]


def in_turns(chosen: list[Worker]) -> Worker:
    """A fleet in which only the next worker in turn has room. All are asked for each segment."""
    asked = count()

    def load(index: int) -> Load:
        return Load(10**6 if next(asked) // len(chosen) % len(chosen) == index else 0, 0)

    return Fleet.of([replace(worker, load=partial(load, i)) for i, worker in enumerate(chosen)])


def events(worker: Worker, turn: Turn) -> list[Any]:
    async def collect() -> list[Any]:
        return [event async for event in worker.run(worker.checked(turn))]

    return asyncio.run(collect())


def answered(worker: Worker, turn: Turn) -> tuple[list[Any], str, list[SegmentRecord], Finished]:
    found = events(worker, turn)
    outputs = [event for event in found if isinstance(event, Output)]
    records = [event for event in found if isinstance(event, SegmentRecord)]
    assert isinstance(found[-1], Finished)
    tokens = [token for output in outputs for token in output.tokens]
    return tokens, "".join(output.text for output in outputs), records, found[-1]


def test_two_precisions_share_an_answer(fleet: Worker) -> None:
    fine, coarse, _ = workers(fleet)
    tokens, text, records, end = answered(in_turns([fine, coarse]), TURN)
    alone = answered(fine, TURN)
    names = [record.worker.rpartition(":")[2] for record in records]
    assert names == [("float32", "bfloat16")[i % 2] for i in range(len(records))] and len(records) >= 3
    assert fine.tokenizer.decode(token.id for token in tokens) == text
    assert end.completion_tokens == 450 == len(tokens) and not end.exact
    assert end.prompt_tokens == alone[3].prompt_tokens
    generated = records[0].usage.generated_tokens
    assert tokens[:generated] == alone[0][:generated]
    # What is resident is of the worker's own precision.
    sizes = [record.live_kv_bytes // -(-record.usage.resident_tokens // 16) for record in records[:2]]
    assert sizes[0] == 2 * sizes[1]


def test_equal_workers_give_the_bytes_of_one(fleet: Worker) -> None:
    fine, _, again = workers(fleet)
    sampling = Sampling(temperature=1.1, seed=4, repetition_penalty=1.3, frequency_penalty=0.3, min_tokens=200)
    turn = replace(TURN, sampling=sampling, stop=("zq",))
    alone, crossed = answered(fine, turn), answered(in_turns([fine, again]), turn)
    assert crossed[:2] == alone[:2]
    assert {record.worker for record in crossed[2]} == {f"{fine.name}:float32#1", f"{fine.name}:float32#2"}
    assert len(crossed[2]) == len(alone[2]) >= 3


def only_the_second(first: Worker, second: Worker) -> Fleet:
    """A fleet whose second worker alone has room."""
    made = Fleet.of([replace(first, load=lambda: Load(0, 0)), replace(second, load=lambda: Load(10**6, 0))])
    assert isinstance(made, Fleet)
    return made


def test_an_answer_is_as_exact_on_an_equal_worker(fleet: Worker) -> None:
    fine, coarse, again = workers(fleet)
    turn = replace(TURN, residency="full", max_tokens=40)
    both = only_the_second(fine, again)
    alone, elsewhere = answered(fine, turn), answered(both, turn)
    assert elsewhere[:2] == alone[:2] and elsewhere[3].exact
    assert [record.worker for record in elsewhere[2]] == [f"{fine.name}:float32#2"]
    assert both.switch.busy == (0, 0)
    *_, records, end = answered(only_the_second(fine, coarse), turn)
    assert (records[0].worker, end.exact) == (f"{fine.name}:float32", True)  # which stays where its bits are


def test_a_prompt_that_comes_again_goes_where_its_blocks_are(fleet: Worker) -> None:
    fine, _, again = workers(fleet)
    turn = replace(
        TURN, residency="full", max_tokens=4, messages=(Message("user", "what stands in no other test " * 9),)
    )
    answered(only_the_second(fine, again), turn)
    made = Fleet.of([fine, again])
    *_, records, _ = answered(made, turn)
    assert records[0].worker == f"{fine.name}:float32#2" and records[0].usage.cached_tokens >= 16
    assert records[0].reason.endswith("of 2 by lmetric")


def test_what_a_client_leaves_counts_no_more(fleet: Worker) -> None:
    fine, _, again = workers(fleet)
    both = only_the_second(fine, again)

    async def leave() -> tuple[int, ...]:
        answer = both.run(both.checked(TURN))
        async for event in answer:
            if isinstance(event, Output):
                break
        busy = both.switch.busy
        await answer.aclose()
        return busy

    assert asyncio.run(leave()) == (0, 1)
    assert both.switch.busy == (0, 0)


def without_merges(source: Path, directory: Path) -> Path:
    """The same model with a tokenizer that knows single bytes only."""
    shutil.copytree(source, directory)
    file = directory / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"]["merges"] = []
    file.write_text(json.dumps(description))
    return directory


def test_text_crosses_between_tokenizers(fleet: Worker, small_hf: Path, tmp_path: Path) -> None:
    fine, *_ = workers(fleet)
    plain = open_worker(str(without_merges(small_hf, tmp_path / "plain")), CONFIG)
    try:
        tried = [recording(worker) for worker in (fine, plain)]
        turn = replace(TURN, sampling=replace(TURN.sampling, frequency_penalty=0.5))
        tokens, text, records, end = answered(in_turns([worker for worker, _ in tried]), turn)
        assert {record.worker for record in records} == {f"{fine.name}:float32", "plain:float32"}
        assert plain.tokenizer.encode(" the") != fine.tokenizer.encode(" the")
        assert fine.tokenizer.decode(token.id for token in tokens) == text  # ids have one meaning, texts two spellings
        assert end.completion_tokens == 450 and not end.exact
        requests = sorted((r for _, requests in tried for r in requests), key=lambda request: request.state.emitted)
        assert len(requests) == len(records) >= 3
        for record, request in zip(records[1:], requests[1:], strict=True):
            so_far = fine.tokenizer.decode(token.id for token in tokens[: request.state.emitted])
            tail = fine.tokenizer.decode(request.prompt[len(request.prompt) - record.tail :])
            assert record.tail > 8 and so_far.endswith(tail)
            size = sum(len(fine.tokenizer.token_bytes(i)) * n for i, n in request.state.counts)
            assert record.reason == "the text ends inside a character" or size >= len(so_far)
    finally:
        plain.close()


def test_ids_of_earlier_answers_mean_nothing_in_another_vocabulary(
    fleet: Worker, small_hf: Path, tmp_path: Path
) -> None:
    fine, *_ = workers(fleet)
    plain = open_worker(str(without_merges(small_hf, tmp_path / "plain")), CONFIG)
    try:
        ids = tuple(fine.tokenizer.encode("In the hall."))
        assert tuple(plain.tokenizer.encode("In the hall.")) != ids
        earlier = (Message("user", "Where?"), Message("assistant", "In the hall.", ids))
        prompts = []
        for known in (ids, ()):
            talk = (earlier[0], replace(earlier[1], ids=known), *LIGHT)
            tried, requests = recording(plain)
            answered(in_turns([fine, tried]), replace(TURN, messages=talk))
            assert requests
            prompts.append([request.prompt for request in requests])
        assert prompts[0] == prompts[1]
    finally:
        plain.close()


def recording(worker: Worker) -> tuple[Worker, list[SegmentRequest]]:
    """A worker whose requests are noted."""
    requests: list[SegmentRequest] = []

    class Noted:
        def __getattr__(self, name: str) -> Any:
            return getattr(worker.backend, name)

        def generate(self, request: SegmentRequest) -> Any:
            requests.append(request)
            return worker.backend.generate(request)

    return replace(worker, backend=cast(Backend, Noted())), requests


def test_density_and_strength_choose(fleet: Worker) -> None:
    fine, coarse, _ = workers(fleet)
    pair = Fleet.of([coarse, fine])
    for messages, dtype, reason in ((LIGHT, "bfloat16", "weakest"), (DENSE, "float32", "strongest")):
        _, _, (record,), end = answered(pair, replace(TURN, messages=messages, max_tokens=5))
        assert record.worker == f"{fine.name}:{dtype}"
        assert record.reason.endswith(f"the {reason} with room")
        assert end.exact == (dtype == "bfloat16")
    _, _, (record,), end = answered(pair, replace(TURN, messages=DENSE, max_tokens=5, residency="full"))
    assert record.worker == f"{fine.name}:bfloat16" and end.exact


def test_what_is_free_is_what_the_engine_says(fleet: Worker) -> None:
    fine, *_ = workers(fleet)
    capabilities = fine.backend.capabilities()
    assert fine.load is not None
    assert fine.load() == Load(capabilities.kv_budget // capabilities.kv_bytes_per_token, 0)

    async def while_running() -> Load:
        stream = fine.run(TURN)
        await anext(stream)
        assert fine.load is not None
        found = fine.load()
        await stream.aclose()
        return found

    assert 0 < asyncio.run(while_running()).free_tokens < capabilities.kv_budget // capabilities.kv_bytes_per_token


def test_behind_the_library(fleet: Worker) -> None:
    fine, coarse, _ = workers(fleet)
    kept = [replace(worker, close=lambda: None) for worker in (coarse, fine)]
    with LLM(Fleet.of(kept)) as llm:
        answer = llm.generate("tell me how it went", max_tokens=12, seed=1)
        assert answer.segments[0].worker == f"{fine.name}:bfloat16"
        assert llm.worker.manifest == f"{coarse.manifest}+{fine.manifest}"


def test_one_worker_is_no_fleet(fleet: Worker) -> None:
    fine, *_ = workers(fleet)
    assert Fleet.of([fine]) is fine
    *_, records, _ = answered(fine, replace(TURN, max_tokens=5))
    assert (records[0].worker, records[0].reason) == ("", "")


def test_an_unknown_model_is_one_line() -> None:
    ended = CliRunner().invoke(app, ["serve", "--model", "/no/such", "--worker", "/no/such:float32", "--port", "0"])
    assert (ended.exit_code, ended.stderr.startswith("error: no model '/no/such'")) == (1, True)


def test_closing_closes_all_also_where_one_cannot_be_opened(small_hf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ghostkv.backends.embedded import EmbeddedBackend
    from ghostkv.errors import GhostError

    closed: list[str] = []
    close = EmbeddedBackend.close

    def noted(backend: EmbeddedBackend) -> None:
        closed.append(backend.model.checkpoint.name)
        close(backend)

    monkeypatch.setattr(EmbeddedBackend, "close", noted)
    with pytest.raises(GhostError, match="/no/such:path"):
        open_fleet(str(small_hf), CONFIG, ["/no/such:path"])
    assert closed == [small_hf.name]
    both = open_fleet(str(small_hf), CONFIG, [f"{small_hf}:bfloat16"])
    assert both.healthy()
    both.close()
    assert closed == [small_hf.name] * 3 and not both.healthy()
