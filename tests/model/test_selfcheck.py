"""The self-check's report: measured once, kept on disk, measured again where asked or damaged."""

from __future__ import annotations

from pathlib import Path

import torch

from ghostkv.model.gemm import Linear, check_shape, prepare, product
from ghostkv.model.selfcheck import self_check

WEIGHT = torch.randn(40, 24, generator=torch.Generator().manual_seed(0))


def few_rows_differ(x: torch.Tensor, linear: Linear, row_scales: torch.Tensor | None = None) -> torch.Tensor:
    out = product(x, linear, row_scales)
    if x.shape[0] == 4:
        out[0] += 1  # one row of one row count
    return out


def test_a_report_is_kept_and_found_again(tmp_path: Path) -> None:
    products, limits, told = {"qkv": prepare(WEIGHT)}, {"qkv": 40}, list[str]()
    first = self_check(products, limits, 1, told.append, directory=tmp_path)
    assert first.fresh == 1 and len(told) == 1 and "qkv" in told[0]
    second = self_check(products, limits, 1, told.append, directory=tmp_path)
    assert second.fresh == 0 and second.checks == first.checks and len(told) == 1
    assert self_check(products, limits, 1, told.append, directory=tmp_path, again=True).fresh == 1


def test_a_damaged_report_is_measured_again(tmp_path: Path) -> None:
    products, limits = {"qkv": prepare(WEIGHT)}, {"qkv": 40}
    first = self_check(products, limits, 1, print, directory=tmp_path)
    file = next(tmp_path.glob("*.json"))
    for content in ("", "{", "[]", '{"name": "qkv"}'):
        file.write_text(content)
        again = self_check(products, limits, 1, print, directory=tmp_path)
        assert again.fresh == 1 and again.plans == first.plans


def test_other_threads_and_limits_are_other_entries(tmp_path: Path) -> None:
    products = {"qkv": prepare(WEIGHT)}
    for threads, limit in ((1, 40), (2, 40), (1, 100)):
        assert self_check(products, {"qkv": limit}, threads, print, directory=tmp_path).fresh == 1


def test_products_of_one_shape_share_a_plan_for_the_larger_limit(tmp_path: Path) -> None:
    products = {"output": prepare(WEIGHT), "head": prepare(WEIGHT)}
    found = self_check(products, {"output": 20, "head": 100}, 1, print, directory=tmp_path)
    assert len(found.checks) == 1
    assert found.checks[0].plan.padded(100) == 104


def test_a_row_count_with_one_bad_row_is_left_out() -> None:
    check = check_shape("qkv", prepare(WEIGHT.bfloat16()), 40, 2, few_rows_differ)
    assert set(check.differing) == {4}
    assert check.plan.counts == (2, 8, 16, 24, 32, 40)
    assert check.plan.padded(3) == 8
