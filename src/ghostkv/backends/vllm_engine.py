"""vLLM's AsyncLLM, as far as the backend needs it. Alone imports vLLM, of 0.32 or newer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import GracefulHTTPError, VLLMClientError, VLLMError
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from ghostkv.backends.vllm import Facts, Gauge
from ghostkv.errors import ConfigError, EngineFault, InvalidRequest, Overloaded

_SHOWN = 500  # characters of vLLM's message that an error repeats


class VllmEngine:
    """`backends.vllm.Engine`. All its methods belong to the event loop that it was started on."""

    def __init__(self, llm: AsyncLLM, gauge: Gauge) -> None:
        """Takes over `llm`, whose every step `gauge` is told of."""
        cache, model = llm.vllm_config.cache_config, llm.model_config
        self.gauge = gauge
        """What vLLM said of its memory last."""
        self.facts = Facts(
            version=vllm.__version__,
            dtype=str(model.dtype).removeprefix("torch."),
            max_context=model.max_model_len,
            blocks=cache.num_gpu_blocks or 0,
            block_tokens=cache.block_size,
            number_bytes=1 if cache.cache_dtype.startswith("fp8") else model.dtype.itemsize,
        )
        """What it has been started with."""
        self._llm = llm

    @classmethod
    async def start(cls, path: Path, options: Sequence[str]) -> VllmEngine:
        """Load the model in the Hugging Face directory `path`, with `options` as `vllm serve` takes them.

        Takes minutes, and the event loop with it. Raises ConfigError with what vLLM says.
        """
        parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(exit_on_error=False))
        try:
            chosen = parser.parse_args(["--model", str(path), *options])
        except SystemExit as error:
            raise ConfigError("vLLM does not know these options; what it says of them stands above") from error
        if chosen.model != str(path):
            raise ConfigError("the model is named with --model, not in vLLM's own options")
        gauge = Gauge()
        try:
            llm = AsyncLLM.from_engine_args(
                AsyncEngineArgs.from_cli_args(chosen), stat_loggers=[lambda config, index=0: _Told(gauge)]
            )
        except (VLLMError, ValueError, RuntimeError, OSError) as error:
            raise ConfigError(f"vLLM does not start: {str(error)[:_SHOWN]}") from error
        return cls(llm, gauge)

    @property
    def alive(self) -> bool:
        """Whether it serves requests."""
        return not self._llm.errored

    async def stream(
        self, ids: Sequence[int], salt: str, fields: Mapping[str, Any], request_id: str
    ) -> AsyncGenerator[Any, None]:
        """Its outputs for a prompt, each with what is new since the last; closing it aborts the request.

        Only prompts with an equal `salt` find each other's blocks. `fields` are those of vLLM's SamplingParams.

        Raises InvalidRequest, Overloaded or EngineFault.
        """
        try:
            params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA, detokenize=False)
            prompt = tokens_input(list(ids), cache_salt=salt)
            async with aclosing(self._llm.generate(prompt, params, request_id)) as outputs:
                async for output in outputs:
                    yield output
        except VLLMClientError as error:
            raise InvalidRequest(f"vLLM: {error}", param=getattr(error, "parameter", None)) from error
        except GracefulHTTPError as error:
            raise Overloaded(f"vLLM: {error.message}") from error
        except VLLMError as error:
            raise EngineFault(f"vLLM: {str(error.__cause__ or error)[:_SHOWN]}") from error

    async def close(self) -> None:
        """End its processes."""
        self._llm.shutdown()


class _Told(StatLoggerBase):
    """What each step of vLLM tells, into a gauge."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            found = scheduler_stats.prefix_cache_stats
            self._gauge.step(scheduler_stats.kv_cache_usage, found.queries, found.hits)

    def log_engine_initialized(self) -> None:
        """Nothing: the facts are read from its configuration."""
