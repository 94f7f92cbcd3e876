"""What of the vLLM backend is ours: how sampling is spelled, salts, what is asked for, aborts, its outputs and faults.

The engine is a fake. The real one runs this suite's `test_conformance` and more, by `benchmarks/vllm_backend.py`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import FixedResidency
from ghostkv.backends.loop_thread import LoopThread
from ghostkv.backends.vllm import Facts, Gauge, VllmBackend
from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError, ContextLengthExceeded, EngineFault, Unsupported
from ghostkv.launch import engine_config, open_vllm
from ghostkv.protocol.rules import FixedBoundary
from ghostkv.request import Decision, Delta, FinishReason, GenerationState, PromptScores, Sampling, SegmentRequest
from ghostkv.residency import policy
from ghostkv.session.turn import Turn
from ghostkv.session.worker import Worker
from services import until
from stub_upstream import EOS, TEXT, TOKENIZER

PROMPT = tuple(b"once: ")
FACTS = Facts("0.32.0", "float32", max_context=256, blocks=20, block_tokens=32, number_bytes=4)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the backend."""

    ids: tuple[int, ...]
    salt: str
    fields: dict[str, Any]
    id: str


@dataclass
class FakeEngine:
    """`backends.vllm.Engine` that answers with the alphabet, `per_output` tokens at a time."""

    per_output: int = 1
    pause_s: float = 0.0  # between two outputs
    finish: str = "length"  # what it says at the end
    most: int = 1000  # tokens, then it ends whatever was asked for
    fault: EngineFault | None = None  # after the first output
    facts: Facts = FACTS
    gauge: Gauge = field(default_factory=Gauge)
    alive: bool = True
    asked: list[Asked] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    closed: bool = False

    async def stream(
        self, ids: Sequence[int], salt: str, fields: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        self.asked.append(Asked(tuple(ids), salt, dict(fields), request_id))
        assert request_id not in self.open
        self.open.add(request_id)
        try:
            answer = [97 + i % 26 for i in range(min(fields["max_tokens"], self.most))]
            for at in range(0, len(answer), self.per_output):
                if at and self.fault is not None:
                    raise self.fault
                part = answer[at : at + self.per_output]
                last = at + self.per_output >= len(answer)
                yield self._output(ids, part, fields, self.finish if last else None)
                await asyncio.sleep(self.pause_s)
        finally:
            self.open.remove(request_id)

    async def close(self) -> None:
        self.closed = True

    def _output(self, ids: Sequence[int], part: list[int], fields: Mapping[str, Any], finish: str | None) -> Any:
        """As vLLM's, `logprobs` with the chosen token's and the best."""

        def beside(token_id: int, best: int) -> dict[int, Any]:
            return {
                i: SimpleNamespace(logprob=-float(1 + abs(i - token_id))) for i in range(token_id, token_id + best + 1)
            }

        best, scored = fields.get("logprobs"), fields.get("prompt_logprobs")
        completion = SimpleNamespace(
            token_ids=part,
            logprobs=None if best is None else [beside(token_id, best) for token_id in part],
            finish_reason=finish,
        )
        return SimpleNamespace(
            outputs=[completion],
            num_cached_tokens=4,
            prompt_logprobs=None if scored is None else [None, *(beside(token_id, scored) for token_id in ids[1:])],
        )


@contextmanager
def over(engine: FakeEngine, **config: Any) -> Iterator[VllmBackend]:
    backend = VllmBackend("fake", engine, TEXT, EngineConfig(**config), LoopThread("vllm"))
    yield backend
    backend.close()
    assert engine.closed and not backend.healthy


def segment(tokens: int = 20, residency: Any = None, **more: Any) -> SegmentRequest:
    sampling = Sampling(temperature=0.0, terminators=TOKENIZER.eos_ids)
    state = GenerationState(rules=(FixedBoundary(8),))
    return SegmentRequest("a", PROMPT, sampling, state, residency or policy("full"), tokens, **more)


def collect(backend: VllmBackend, request: SegmentRequest) -> list[Delta]:
    async def run() -> list[Delta]:
        return [delta async for delta in backend.generate(request)]

    return asyncio.run(run())


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("per_output", [1, 3, 100])
def test_a_boundary_aborts_the_request_and_drops_what_came_after_it(per_output: int) -> None:
    engine = FakeEngine(per_output)
    with over(engine) as backend:
        seen: list[set[str]] = []

        async def run() -> Delta:
            async for delta in backend.generate(segment(20, FixedResidency(Decision.FLUSH))):
                if delta.finish is not None:
                    seen.append(set(engine.open))
                    return delta
            raise AssertionError

        finish = asyncio.run(run()).finish
        assert finish is not None and finish.reason is FinishReason.FLUSH and finish.state.emitted == 8
        assert seen == [set()]  # aborted before the end is told
        assert backend.dropped == min(-(-8 // per_output) * per_output, 20) - 8
        assert finish.usage.cached_tokens == 4 == backend.snapshot().cached_tokens


def test_cancelling_aborts_the_request() -> None:
    engine = FakeEngine(pause_s=0.02)
    with over(engine) as backend:

        async def run() -> list[Delta]:
            seen = []
            async for delta in backend.generate(segment(200)):
                seen.append(delta)
                backend.cancel("a")
            return seen

        last = asyncio.run(run())[-1]
        assert last.finish is not None and last.finish.reason is FinishReason.CANCELLED
        assert last.finish.usage.generated_tokens < 200
        assert until(lambda: not engine.open and backend.snapshot().running == 0)


def test_each_request_has_its_domain_as_salt_and_an_id_of_its_own() -> None:
    engine = FakeEngine()
    with over(engine) as backend:
        for tenant in ("alice", "bob", "alice"):
            collect(backend, segment(2, tenant=tenant))
    salts = [asked.salt for asked in engine.asked]
    assert salts[0] == salts[2] != salts[1] and all(salts)
    assert len({asked.id for asked in engine.asked}) == 3


def test_a_boundary_that_is_kept_asks_for_nothing_again() -> None:
    engine = FakeEngine()
    keep = FixedResidency(Decision.KEEP, block=10)
    with over(engine) as backend:
        assert len(text(collect(backend, segment(30, keep, flushed_prompt=12)))) == 30
        assert [asked.fields["max_tokens"] for asked in engine.asked] == [30]
        collect(backend, segment(30, keep))
        assert [(len(asked.ids), asked.fields["max_tokens"]) for asked in engine.asked[1:]] == [
            (6, 10),
            (16, 10),
            (26, 10),
        ]


def test_sampling_in_vllms_words() -> None:
    engine = FakeEngine()
    sampling = Sampling(
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias=((97, -1.0),),
        min_tokens=9,
        terminators=(EOS, 98),
        seed=7,
        logprobs=2,
    )
    asked = replace(segment(2), sampling=sampling, state=GenerationState(emitted=5), repeatable=True)
    with over(engine) as backend:
        collect(backend, segment(2))
        collect(backend, asked)
        collect(backend, replace(asked, state=GenerationState(emitted=6)))
        collect(backend, replace(asked, repeatable=False))
    assert engine.asked[0].fields == {"max_tokens": 2, "temperature": 0.0}
    fields = engine.asked[1].fields
    seed = fields.pop("seed")
    assert fields == {
        "max_tokens": 2,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {97: -1.0},
        "min_tokens": 2,  # 4 are left, but vLLM refuses more than it is asked for
        "stop_token_ids": [98],
        "ignore_eos": True,
        "logprobs": 2,
    }
    assert engine.asked[2].fields["seed"] != seed  # another segment begins with other numbers
    assert "seed" not in engine.asked[3].fields


def test_log_probabilities_of_tokens_and_of_the_prompt() -> None:
    engine = FakeEngine()
    with over(engine) as backend:
        sampling = Sampling(temperature=0.0, logprobs=1)
        deltas = collect(backend, replace(segment(2), sampling=sampling))
        first = deltas[0].tokens[0]
        assert (first.id, first.logprob, first.top) == (97, -1.0, ((97, -1.0),))
        asked = replace(segment(0), scores=PromptScores(start=2, best=1))
        (read,) = collect(backend, asked)
        assert [(token.id, token.logprob) for token in read.prompt] == [(token_id, -1.0) for token_id in PROMPT[2:]]
        assert read.finish is not None and read.finish.usage.generated_tokens == 0
        assert engine.asked[-1].fields == {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1}
        assert asyncio.run(backend.score(PROMPT, 1)) == [-1.0] * (len(PROMPT) - 1)
        with pytest.raises(ContextLengthExceeded, match="at most 255, and this one has 256"):
            asyncio.run(backend.score([5] * 256, 1))


def test_what_vllm_says_of_itself() -> None:
    engine = FakeEngine(pause_s=0.02)
    with over(engine) as backend:
        can = backend.capabilities()
        assert (can.max_context, can.kv_bytes_per_token, can.block_tokens) == (256, 2 * TEXT.kv_bytes_per_token, 32)
        assert can.kv_budget == 20 * 32 * can.kv_bytes_per_token and not can.exact
        for usage in (0.5, 0.25):
            engine.gauge.step(usage, 0, 0)

        async def run() -> None:
            async for _ in backend.generate(segment(200)):
                seen = backend.snapshot()
                assert (seen.blocks, seen.live_blocks, seen.free_blocks, seen.peak_live_blocks) == (20, 5, 15, 10)
                assert backend.occupancy().free_tokens == 15 * 32
                break

        asyncio.run(run())
        assert until(lambda: backend.snapshot().running == 0)
        assert backend.snapshot().live_blocks == 0  # though no step has said so
        assert backend.identity == "vllm 0.32.0:fake:float32"


def test_faults() -> None:
    broken = FakeEngine(fault=EngineFault("vLLM: boom"))
    with over(broken) as backend, pytest.raises(EngineFault, match="boom"):
        collect(backend, segment())
    with (
        over(FakeEngine(finish="abort", most=5)) as backend,
        pytest.raises(EngineFault, match="vLLM ended an answer with 'abo"),
    ):
        collect(backend, segment())
    engine = FakeEngine()
    with over(engine) as backend:
        assert backend.healthy
        engine.alive = False  # its process has died: the server is to end as after a fault of its own engine
        assert not backend.healthy


def test_a_worker_over_it_refuses_what_it_lacks() -> None:
    with over(FakeEngine()) as backend:
        worker = Worker.remote(backend, EngineConfig(), lambda: 0.0)
        assert worker.name == "fake" and list(worker.members()) == ["fake:bfloat16"]
        turn = Turn("a", Sampling(), prompt=PROMPT, max_tokens=5, residency="sink_window")
        with pytest.raises(Unsupported, match="sink_window"):
            worker.checked(turn)


def test_what_it_cannot_start_with(small_gguf: Path, small_hf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="reads Hugging Face directories"):
        open_vllm(str(small_gguf), engine_config())
    for wrong in (engine_config(dtype="int8"), engine_config(kv_dtype="int8")):
        with pytest.raises(ConfigError, match="chosen by its own options"):
            open_vllm(str(small_hf), wrong)
    with pytest.raises(ConfigError, match="cannot be read: No closing quotation"):
        open_vllm(str(small_hf), engine_config(), options="--x 'y")
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ConfigError, match=r"pip install 'ghostkv\[server,vllm\]'"):
        open_vllm(str(small_hf), engine_config())
