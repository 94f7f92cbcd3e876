"""vLLM in this process in place of our own engine: prefixes are cached, under each tenant's own salt.

vLLM itself is imported by `vllm_engine` alone, when it is started.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from ghostkv.backends.base import Capabilities, Load, Stats
from ghostkv.backends.loop_thread import LoopThread
from ghostkv.backends.remote import Chunk, Follow, RemoteBackend
from ghostkv.backends.upstream_body import sampling_fields
from ghostkv.backends.upstream_segment import RemoteSegment
from ghostkv.backends.upstream_text import KV_NUMBER_BYTES, ModelText, read_text
from ghostkv.config import EngineConfig
from ghostkv.engine.admission import Limits
from ghostkv.errors import ConfigError, ContextLengthExceeded, EngineFault
from ghostkv.request import Delta, SegmentRequest, Token

_VARIABLES = {"VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_NO_USAGE_STATS": "1"}
"""Of vLLM, where nobody has set them: its log is beside ours, and nothing is reported to anybody."""
_DTYPES = ("bfloat16", "float32")  # of ours, that vLLM has too


@dataclass(frozen=True, slots=True)
class Facts:
    """What a vLLM has been started with."""

    version: str
    dtype: str  # of weights and activations
    max_context: int  # tokens
    blocks: int  # of its KV pool
    block_tokens: int
    number_bytes: int  # of one number of KV


@dataclass(slots=True)
class Gauge:
    """What vLLM tells of its memory, step by step. Read on any thread."""

    usage: float = 0.0  # of its blocks, those that requests hold: 0 to 1
    peak: float = 0.0
    queried_tokens: int = 0  # of prompts, looked up in the prefix cache
    hit_tokens: int = 0  # of those, found

    def step(self, usage: float, queried: int, hit: int) -> None:
        """One more step."""
        self.usage, self.peak = usage, max(self.peak, usage)
        self.queried_tokens += queried
        self.hit_tokens += hit


class Engine(Protocol):
    """What is needed of vLLM; see `vllm_engine.VllmEngine`."""

    @property
    def facts(self) -> Facts: ...

    @property
    def gauge(self) -> Gauge: ...

    @property
    def alive(self) -> bool: ...

    def stream(
        self, ids: Sequence[int], salt: str, fields: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]: ...

    async def close(self) -> None: ...


class VllmBackend(RemoteBackend):
    """`backends.base.Backend` over vLLM's AsyncLLM."""

    def __init__(self, name: str, engine: Engine, text: ModelText, config: EngineConfig, thread: LoopThread) -> None:
        """Takes over `engine` and the `thread` that it was started on."""
        super().__init__(name, "vLLM", text, Limits.of(config, engine.facts.max_context), thread)
        self.engine = engine
        """What computes."""
        self._requests = count()

    @classmethod
    def start(
        cls, name: str, path: Path, config: EngineConfig, *, kv_bytes: int | None, options: Sequence[str] = ()
    ) -> VllmBackend:
        """Load the model in the Hugging Face directory `path`; minutes. It is served as `name`.

        `kv_bytes`: what its KV pool may take; None: what vLLM takes by itself. `options`: more of them, as `vllm serve`
        takes them. Raises ConfigError where vLLM does not start so, ModelError for files that cannot be used.
        """
        if not path.is_dir():
            raise ConfigError(f"{path}: vLLM reads Hugging Face directories, which this is not")
        if config.dtype not in _DTYPES or config.kv_dtype != "auto":
            raise ConfigError(
                f"dtype {config.dtype!r} with kv_dtype {config.kv_dtype!r} belongs to ghostkv's own engine; vLLM's "
                f"precisions are chosen by its own options, such as --quantization and --kv-cache-dtype"
            )
        for variable, value in _VARIABLES.items():
            os.environ.setdefault(variable, value)
        try:
            from ghostkv.backends.vllm_engine import VllmEngine  # brings vLLM, which takes seconds
        except ImportError as error:
            raise ConfigError(f"vLLM is an extra: pip install 'ghostkv[server,vllm]' ({error})") from error

        own = ["--enable-prefix-caching", "--dtype", config.dtype, "--max-num-seqs", str(config.max_sequences)]
        if kv_bytes is not None:
            own += ["--kv-cache-memory-bytes", str(kv_bytes)]
        text, thread = read_text(path), LoopThread("ghostkv-vllm")
        try:
            engine = thread.start(VllmEngine.start(path, [*own, *options])).result()
        except BaseException:
            thread.close()
            raise
        return cls(name, engine, text, config, thread)

    @property
    def identity(self) -> str:
        """See RemoteBackend."""
        facts = self.engine.facts
        return f"vllm {facts.version}:{self.name}:{facts.dtype}"

    @property
    def healthy(self) -> bool:
        """Whether vLLM runs and requests are served."""
        return super().healthy and self.engine.alive

    def capabilities(self) -> Capabilities:
        """Known, not asked: all that segments need, and what vLLM has of its own."""
        facts = self.engine.facts
        token_bytes = self.text.kv_bytes_per_token * facts.number_bytes // KV_NUMBER_BYTES
        return Capabilities(
            token_ids=True,
            extend=True,
            generation_state=False,
            logprobs=True,
            score=True,
            exact=False,
            max_context=facts.max_context,
            kv_bytes_per_token=token_bytes,
            kv_budget=token_bytes * facts.blocks * facts.block_tokens,
            block_tokens=facts.block_tokens,
            windows=False,
        )

    def occupancy(self) -> Load:
        """How busy vLLM is, about now."""
        facts = self.engine.facts
        return replace(super().occupancy(), free_tokens=(facts.blocks - self._live_blocks) * facts.block_tokens)

    def snapshot(self) -> Stats:
        """What was asked and answered, and vLLM's blocks; those that it only caches count as free."""
        blocks, live = self.engine.facts.blocks, self._live_blocks
        return replace(
            super().snapshot(),
            blocks=blocks,
            live_blocks=live,
            free_blocks=blocks - live,
            peak_live_blocks=round(self.engine.gauge.peak * blocks),
        )

    @property
    def _live_blocks(self) -> int:
        """As of vLLM's last step; it takes none for the end of its last request."""
        return round(self.engine.gauge.usage * self.engine.facts.blocks) if self._line.running else 0

    async def _ask(self, segment: RemoteSegment, follow: Follow) -> Delta | None:
        return await follow(self._chunks(segment))

    async def _chunks(self, segment: RemoteSegment) -> AsyncGenerator[Chunk, None]:
        request = segment.request
        fields = sampling_fields(request, segment.generated, self._to_ask(segment), self.tokenizer)
        if (best := request.sampling.logprobs) is not None:
            fields["logprobs"] = best
        async with aclosing(self._stream(request, (*request.prompt, *segment.ids), fields)) as outputs:
            async for output in outputs:
                answer = output.outputs[0]
                yield Chunk(
                    _tokens(answer.token_ids, answer.logprobs, best),
                    answer.finish_reason,
                    output.num_cached_tokens or 0,
                )

    async def _scores(self, segment: RemoteSegment, best: int) -> Sequence[Token]:
        request = segment.request
        length, most = len(request.prompt), self.engine.facts.max_context - 1
        if length > most:
            raise ContextLengthExceeded(
                f"context_length_exceeded: vLLM reads a prompt only with room for one more token, so that it may have "
                f"at most {most}, and this one has {length}",
                param="prompt",
            )
        fields = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": best}
        async with aclosing(self._stream(request, request.prompt, fields)) as outputs:
            async for output in outputs:
                if output.prompt_logprobs:
                    return (Token(request.prompt[0]), *_tokens(request.prompt[1:], output.prompt_logprobs[1:], best))
        raise EngineFault("vLLM gave no log-probabilities of a prompt")

    def _stream(
        self, request: SegmentRequest, ids: Sequence[int], fields: Mapping[str, Any]
    ) -> AsyncGenerator[Any, None]:
        # An id of its own: ours may come again before vLLM has let go of the last one.
        return self.engine.stream(ids, request.domain, fields, f"{next(self._requests)}")

    async def _shut(self) -> None:
        await self.engine.close()


def _tokens(ids: Sequence[int], logprobs: Sequence[Mapping[int, Any]] | None, best: int | None) -> tuple[Token, ...]:
    """vLLM's tokens; with log-probabilities, and the `best` best beside each, where `best` is not None."""
    if best is None or not ids:
        return tuple(map(Token, ids))
    if logprobs is None or len(logprobs) != len(ids):
        raise EngineFault(f"vLLM gave {len(logprobs or ())} log-probabilities for {len(ids)} tokens")
    return tuple(Token(id_, found[id_].logprob, _best(found, best)) for id_, found in zip(ids, logprobs))


def _best(found: Mapping[int, Any], most: int) -> tuple[tuple[int, float], ...]:
    pairs = [(token_id, value.logprob) for token_id, value in found.items()]
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:most])
