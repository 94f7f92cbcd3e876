"""From a checkpoint to something that runs: weights in place, products checked, the KV pool allocated."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError
from ghostkv.model import machine
from ghostkv.model.checkpoint import Checkpoint, open_checkpoint
from ghostkv.model.cpu_ops import CPUOps
from ghostkv.model.decoder import Decoder
from ghostkv.model.int8_weights import load_int8
from ghostkv.model.kv_tensors import KVTensors, block_bytes
from ghostkv.model.ops import Ops
from ghostkv.model.runner import ModelRunner, RunnerLimits
from ghostkv.model.selfcheck import SelfCheck, self_check
from ghostkv.model.steering import Steerer, SteeringBank
from ghostkv.model.threads import available_threads
from ghostkv.model.tile import TILE_ROWS
from ghostkv.model.torch_ops import TorchOps
from ghostkv.startup import Phases, give_back_memory, resume_collection

_log = logging.getLogger(__name__)
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.bfloat16}  # of the embedding
_KV_DTYPES = ("auto", "int8")

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that can run steps."""

    checkpoint: Checkpoint
    runner: ModelRunner
    blocks: int  # of the pool
    block_bytes: int
    product_bytes: int  # weights that every step reads: all but the embedding
    tile_rows: int  # that products compute at once; 1: any number costs in proportion
    check: SelfCheck | None  # None where the numeric contract does not hold (a device other than the CPU)
    manifest: str  # 32 hex digits: equal manifests compute equal bits
    steering: SteeringBank | None = None


def load_model(
    path: Path,
    config: EngineConfig,
    announce: Announce = lambda _: None,
    instrument: Callable[[Ops], Ops] = lambda ops: ops,
) -> LoadedModel:
    """Load the model at `path`. `announce` is told what takes long; `instrument` may wrap the operators to watch them.

    Raises ModelError for files that cannot be used, ConfigError for a setting or a pool that cannot work.
    """
    dtype, device, phases = kv_dtype(config), torch.device(config.device), Phases()
    checkpoint = open_checkpoint(path)
    phases.end("open")
    announce(f"loading {checkpoint.name} as {config.dtype}")
    shape = checkpoint.shape
    per_block = block_bytes(shape, dtype)
    blocks = config.kv_budget // per_block
    if blocks < 1:
        raise ConfigError(f"the KV budget of {config.kv_budget} bytes holds no block: one takes {per_block} bytes")
    model = build_model(checkpoint, config)
    phases.end("weights")
    bank = _bank(config, checkpoint)
    limits = runner_limits(config)
    ops, check = _operators(model, limits, announce)
    phases.end("check")
    kv, steerer = KVTensors(shape, blocks, dtype, device), None if bank is None else Steerer(bank, model)
    runner = ModelRunner(model, kv, instrument(ops), limits, steerer)
    phases.end("pool")
    announce("compiling kernels (kept on disk)")
    runner.warm_up()
    phases.end("kernels")
    resume_collection()
    give_back_memory()
    sizes = {"weight_bytes": model.weight_bytes, "pool_bytes": blocks * per_block}
    fields = {"model": checkpoint.name, "dtype": config.dtype, **phases.fields(), **sizes}
    _log.info("loaded", extra={"fields": fields})
    parts = (checkpoint.digest, config.dtype, config.kv_dtype, config.device, machine.build())
    tile_rows = TILE_ROWS if check is not None and all(plan.free for plan in check.plans.values()) else 1
    manifest = machine.digest(*parts, *(() if bank is None else (bank.digest,)))
    return LoadedModel(checkpoint, runner, blocks, per_block, model.product_bytes, tile_rows, check, manifest, bank)


def pool_bytes(path: Path, config: EngineConfig, blocks: int) -> int:
    """Bytes of a pool of `blocks` blocks for the model at `path`."""
    return blocks * block_bytes(open_checkpoint(path).shape, kv_dtype(config))


def torch_dtype(config: EngineConfig) -> torch.dtype:
    """The dtype of the embedding under `config`. Raises ConfigError listing the names there are."""
    if config.dtype not in _DTYPES:
        raise ConfigError(f"dtype {config.dtype!r} is not one of {', '.join(_DTYPES)}")
    return _DTYPES[config.dtype]


def kv_dtype(config: EngineConfig) -> torch.dtype:
    """The dtype of KV under `config`; int8 stands for digits (`kv_codec`). Raises ConfigError as `torch_dtype` does."""
    plain = torch_dtype(config)
    if config.kv_dtype not in _KV_DTYPES:
        raise ConfigError(f"kv_dtype {config.kv_dtype!r} is not one of {', '.join(_KV_DTYPES)}")
    return torch.int8 if config.kv_dtype == "int8" else plain


def build_model(checkpoint: Checkpoint, config: EngineConfig) -> Decoder:
    """The architecture with its weights laid out as `config` asks. Raises ConfigError for what a device cannot do."""
    int8 = config.dtype == "int8"
    if int8 and config.device != "cpu":
        raise ConfigError(f"dtype 'int8' runs on the CPU only, not on {config.device!r}")
    dtype = torch_dtype(config)
    weights = load_int8(checkpoint, dtype) if int8 else checkpoint.weights(dtype)
    return Decoder(checkpoint.shape, weights, torch.device(config.device), int8=int8)


def runner_limits(config: EngineConfig) -> RunnerLimits:
    """The largest step under `config`; threads 0 means every core."""
    return RunnerLimits(config.step_tokens, config.max_sequences, config.threads or available_threads())


def _bank(config: EngineConfig, checkpoint: Checkpoint) -> SteeringBank | None:
    if not config.steering:
        return None
    shape = checkpoint.shape
    return SteeringBank.load(Path(config.steering), checkpoint.digest, hidden=shape.hidden, layers=shape.layers)


def _operators(model: Decoder, limits: RunnerLimits, announce: Announce) -> tuple[Ops, SelfCheck | None]:
    if model.embedding.device.type != "cpu":
        return TorchOps(), None
    check = check_products(model, limits, announce)
    return CPUOps(model.shape, check.plans, limits.threads), check


def check_products(model: Decoder, limits: RunnerLimits, announce: Announce, *, again: bool = False) -> SelfCheck:
    """The self-check of a model's products; `again` measures although results are on disk."""
    products = model.products()
    rows = {name: limits.sequences if name == "head" else limits.rows for name in products}
    return self_check(products, rows, limits.threads, announce, again=again)
