from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ghostkv
from ghostkv.errors import InvalidRequest
from ghostkv.request import BoundaryView, Decision
from ghostkv.residency import SegmentBudget, names, policy

VIEW = BoundaryView(kind="sentence", resident=300, generated=150, unreserved=0, free_blocks=0, waiting=9)
ROOMY = BoundaryView(kind="cap", resident=10, generated=1, unreserved=1000, free_blocks=10_000, waiting=0)


def test_the_policies_there_are() -> None:
    assert {"full", "segment"} <= set(names())
    assert all(policy(name).name == name for name in names())


def test_an_unknown_policy_is_refused_with_the_names() -> None:
    with pytest.raises(InvalidRequest) as refused:
        policy("forever")
    assert refused.value.param == "ghostkv.residency"
    assert all(name in refused.value.message for name in ("forever", *names()))


def test_full() -> None:
    full = policy("full")
    assert full.budget is None
    assert full.reserve(5000) == 5000
    assert [full.at_boundary(view) for view in (VIEW, ROOMY)] == [Decision.KEEP, Decision.KEEP]


def test_segment() -> None:
    segment = policy("segment")
    assert segment.budget == SegmentBudget(target=150, cap=192, tail=72, state=34, recall=26)
    assert segment.budget.carried == 132
    assert [segment.reserve(n) for n in (1, 191, 192, 5000)] == [1, 191, 192, 192]
    assert [segment.at_boundary(view) for view in (VIEW, ROOMY)] == [Decision.FLUSH, Decision.FLUSH]


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("remaining", [1, 2, 150, 10_000])
def test_every_policy_reserves_something_that_may_be_used(name: str, remaining: int) -> None:
    assert 1 <= policy(name).reserve(remaining) <= remaining


NEW_POLICY = """
from dataclasses import dataclass
from ghostkv.request import BoundaryView, Decision
from ghostkv.residency.registry import register

@register
@dataclass(frozen=True)
class Never:
    name: str = "{name}"
    budget: None = None
    visible: None = None
    def reserve(self, remaining: int) -> int:
        return remaining
    def at_boundary(self, view: BoundaryView) -> Decision:
        return Decision.KEEP
"""


@pytest.mark.parametrize(
    ("name", "code", "out"),
    [
        ("never", "print(*names())", "full never segment"),
        ("full", "", "two residency policies are called 'full'"),
    ],
)
def test_a_policy_is_one_new_file(tmp_path: Path, name: str, code: str, out: str) -> None:
    package = tmp_path / "ghostkv"
    source = Path(ghostkv.__path__[0])
    shutil.copytree(source / "residency", package / "residency", ignore=shutil.ignore_patterns("__pycache__"))
    for module in ("request.py", "errors.py"):
        shutil.copy(source / module, package / module)
    (package / "__init__.py").touch()
    for file in (package / "residency").glob("*.py"):
        if file.stem not in ("__init__", "registry", "full", "segment"):
            file.unlink()
    (package / "residency" / "never.py").write_text(NEW_POLICY.format(name=name))
    ran = subprocess.run(
        [sys.executable, "-c", f"from ghostkv.residency import names\n{code}"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out in ran.stdout + ran.stderr
