"""The residency policies, one small file each: how much KV a segment reserves, and what happens at its boundary.

Importing this package imports every module in its folder, so a new policy is one new file and no other edit. Policies
know numbers and no blocks, tensors or text.
"""

from __future__ import annotations

import importlib
import pkgutil

from ghostkv.residency.registry import DEFAULT_RESIDENCY, Policy, SegmentBudget, names, policy, register

__all__ = ["DEFAULT_RESIDENCY", "Policy", "SegmentBudget", "names", "policy", "register"]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
