"""`ghostkv verify`: the self-check of a model's products without a pool, a runner or a request."""

from __future__ import annotations

from pathlib import Path

import torch

from ghostkv.config import EngineConfig
from ghostkv.errors import ConfigError
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.llama import ARCHITECTURES
from ghostkv.model.load import DTYPES, Announce, check_products
from ghostkv.model.runner import RunnerLimits
from ghostkv.model.selfcheck import SelfCheck
from ghostkv.model.threads import available_threads


def verify_model(path: Path, config: EngineConfig, announce: Announce, *, again: bool = False) -> SelfCheck:
    """The report for the model at `path`; `again` measures although results are on disk.

    Raises ModelError where this machine cannot keep the numeric contract, and for files that cannot be used.
    """
    if config.dtype not in DTYPES:
        raise ConfigError(f"dtype {config.dtype!r} is not one of {', '.join(DTYPES)}")
    checkpoint = open_checkpoint(path)
    announce(f"loading {checkpoint.name} as {config.dtype}")
    weights = checkpoint.weights(DTYPES[config.dtype])
    model = ARCHITECTURES[checkpoint.shape.architecture](checkpoint.shape, weights, torch.device("cpu"))
    limits = RunnerLimits(config.step_tokens, config.max_sequences, config.threads or available_threads())
    return check_products(model, limits, announce, again=again)
