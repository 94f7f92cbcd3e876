"""`ghostkv verify`: the self-check of a model's products without a pool, a runner or a request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ghostkv.config import EngineConfig
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.load import Announce, build_model, check_products, runner_limits, torch_dtype
from ghostkv.model.selfcheck import SelfCheck


def verify_model(path: Path, config: EngineConfig, announce: Announce, *, again: bool = False) -> SelfCheck:
    """The report for the model at `path`; `again` measures although results are on disk.

    Raises ModelError where this machine cannot keep the numeric contract, and for files that cannot be used.
    """
    torch_dtype(config)
    checkpoint = open_checkpoint(path)
    announce(f"loading {checkpoint.name} as {config.dtype}")
    model = build_model(checkpoint, replace(config, device="cpu"))
    return check_products(model, runner_limits(config), announce, again=again)
