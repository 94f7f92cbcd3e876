"""The start-up self-check: which row counts give every row the same bits here, per product shape and thread count.

Results are kept on disk per build, processor, shape and thread count, so a machine pays once. `ghostkv verify` prints
them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ghostkv.config import cache_dir
from ghostkv.model import machine
from ghostkv.model.gemm import CHECK_ROWS, GemmCheck, GemmPlan, Linear, Product, check_shape, product, row_counts
from ghostkv.model.threads import compute

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """The report: one entry per product shape."""

    checks: tuple[GemmCheck, ...]
    fresh: int  # entries measured now, not read from disk

    @property
    def plans(self) -> dict[tuple[int, int], GemmPlan]:
        """(outputs, inputs) -> plan."""
        return {(check.outputs, check.inputs): check.plan for check in self.checks}


def self_check(
    products: Mapping[str, Linear],
    limits: Mapping[str, int],
    threads: int,
    announce: Announce,
    *,
    product: Product = product,
    directory: Path | None = None,
    again: bool = False,
) -> SelfCheck:
    """Check each of `products` (name -> matrix) for up to limits[name] rows, or read the result of an earlier check.

    `announce` is told before each measurement. `again` measures although a result is on disk.
    """
    directory = directory or cache_dir() / "selfcheck"
    checks: dict[tuple[int, ...], GemmCheck] = {}
    fresh = 0
    limit_of: dict[tuple[int, ...], int] = {}
    for name, linear in products.items():  # two products of one shape share a plan
        shape = (linear.outputs, linear.inputs)
        limit_of[shape] = max(limit_of.get(shape, 0), limits[name])
    for name, linear in products.items():
        shape = (linear.outputs, linear.inputs)
        if shape in checks:
            continue
        file = directory / f"{_key(linear, limit_of[shape], threads)}.json"
        check = None if again else _read(file)
        if check is None:
            announce(f"checking that rows of {name} {shape[0]} x {shape[1]} do not depend on their batch")
            with compute(threads):
                check = check_shape(name, linear, limit_of[shape], threads, product)
            _write(file, check)
            fresh += 1
        checks[shape] = check
    return SelfCheck(tuple(checks.values()), fresh)


def _key(linear: Linear, limit: int, threads: int) -> str:
    counts = row_counts(limit, linear.outputs)
    shape = linear.outputs, linear.inputs, str(linear.dtype), linear.layout
    return machine.digest(machine.build(), shape, counts, CHECK_ROWS, threads)


def _read(file: Path) -> GemmCheck | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        plan = GemmPlan(tuple(value["plan"]["counts"]), value["plan"]["tile"], value["plan"]["free"])
        differing = {int(count): int(rows) for count, rows in value["differing"].items()}
        return GemmCheck(**(value | {"plan": plan, "differing": differing}))
    except (OSError, ValueError, TypeError, KeyError):
        return None  # absent or damaged: check again


def _write(file: Path, check: GemmCheck) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as draft:
        json.dump(asdict(check), draft)
    os.replace(draft.name, file)
