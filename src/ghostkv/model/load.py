"""From a checkpoint to something that runs: weights in place, products checked, the KV pool allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError
from ghostkv.model import machine
from ghostkv.model.checkpoint import Checkpoint, open_checkpoint
from ghostkv.model.cpu_ops import CPUOps
from ghostkv.model.kv_tensors import KVTensors, block_bytes
from ghostkv.model.llama import ARCHITECTURES, Llama
from ghostkv.model.ops import Ops
from ghostkv.model.runner import ModelRunner, RunnerLimits
from ghostkv.model.selfcheck import SelfCheck, self_check
from ghostkv.model.threads import available_threads
from ghostkv.model.torch_ops import TorchOps

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can run steps."""

    checkpoint: Checkpoint
    runner: ModelRunner
    blocks: int  # of the pool
    block_bytes: int
    check: SelfCheck | None  # None where the numeric contract does not hold (a device other than the CPU)
    manifest: str  # 32 hex digits: equal manifests compute equal bits


def load_model(
    path: Path,
    config: EngineConfig,
    announce: Announce = lambda _: None,
    instrument: Callable[[Ops], Ops] = lambda ops: ops,
) -> LoadedModel:
    """Load the model at `path`. `announce` is told what takes long; `instrument` may wrap the operators to watch them.

    Raises ModelError for files that cannot be used, ConfigError for a setting or a pool that cannot work.
    """
    dtype, device = torch_dtype(config), torch.device(config.device)
    checkpoint = open_checkpoint(path)
    announce(f"loading {checkpoint.name} as {config.dtype}")
    shape = checkpoint.shape
    per_block = block_bytes(shape, dtype)
    blocks = config.kv_budget // per_block
    if blocks < 1:
        raise ConfigError(f"the KV budget of {config.kv_budget} bytes holds no block: one takes {per_block} bytes")
    model = ARCHITECTURES[shape.architecture](shape, checkpoint.weights(dtype), device)
    limits = runner_limits(config)
    ops, check = _operators(model, limits, announce)
    runner = ModelRunner(model, KVTensors(shape, blocks, dtype, device), instrument(ops), limits)
    announce("compiling kernels (kept on disk)")
    runner.warm_up()
    manifest = machine.digest(checkpoint.digest, config.dtype, config.device, machine.build())
    return LoadedModel(checkpoint, runner, blocks, per_block, check, manifest)


def pool_bytes(path: Path, config: EngineConfig, blocks: int) -> int:
    """Bytes of a pool of `blocks` blocks for the model at `path`."""
    return blocks * block_bytes(open_checkpoint(path).shape, torch_dtype(config))


def torch_dtype(config: EngineConfig) -> torch.dtype:
    """The dtype that `config` names. Raises ConfigError listing the names there are."""
    if config.dtype not in _DTYPES:
        raise ConfigError(f"dtype {config.dtype!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[config.dtype]


def runner_limits(config: EngineConfig) -> RunnerLimits:
    """The largest step under `config`; threads 0 means every core."""
    return RunnerLimits(config.step_tokens, config.max_sequences, config.threads or available_threads())


def _operators(model: Llama, limits: RunnerLimits, announce: Announce) -> tuple[Ops, SelfCheck | None]:
    if model.embedding.device.type != "cpu":
        return TorchOps(), None
    check = check_products(model, limits, announce)
    return CPUOps(model.shape, check.plans, limits.threads), check


def check_products(model: Llama, limits: RunnerLimits, announce: Announce, *, again: bool = False) -> SelfCheck:
    """The self-check of a model's products; `again` measures although results are on disk."""
    products = model.products()
    rows = {name: limits.sequences if name == "head" else limits.rows for name in products}
    return self_check(products, rows, limits.threads, announce, again=again)
