"""`ghostkv verify`: the self-check of a model's products without a pool, a runner or a request."""

from __future__ import annotations

from pathlib import Path

import torch

from ghostkv.config import EngineConfig
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.llama import ARCHITECTURES
from ghostkv.model.load import Announce, check_products, runner_limits, torch_dtype
from ghostkv.model.selfcheck import SelfCheck


def verify_model(path: Path, config: EngineConfig, announce: Announce, *, again: bool = False) -> SelfCheck:
    """The report for the model at `path`; `again` measures although results are on disk.

    Raises ModelError where this machine cannot keep the numeric contract, and for files that cannot be used.
    """
    dtype = torch_dtype(config)
    checkpoint = open_checkpoint(path)
    announce(f"loading {checkpoint.name} as {config.dtype}")
    weights = checkpoint.weights(dtype)
    model = ARCHITECTURES[checkpoint.shape.architecture](checkpoint.shape, weights, torch.device("cpu"))
    return check_products(model, runner_limits(config), announce, again=again)
