"""The documents say what is there: names exist, the README's snippet runs, no path of any machine is left in."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def defined(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_named_function_exists() -> None:
    names = re.findall(r"`([\w/]+\.py):(\w+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(names) >= 20
    for file, name in names:
        assert name in defined(ROOT / "src" / "ghostkv" / file), f"{file}:{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_named_file_exists(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (document.parent / target).exists(), target
    for name in re.findall(r"`((?:tests|benchmarks|model|engine|session)/[\w/]+\.py)`", text):
        base = ROOT if name.startswith(("tests", "benchmarks")) else ROOT / "src" / "ghostkv"
        assert (base / name).exists(), name


def test_the_readme_snippet_runs(small_hf: Path) -> None:
    snippet = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(snippet) == 1 and len(snippet[0].strip().splitlines()) <= 10
    code = snippet[0].replace('"smollm2"', repr(str(small_hf)))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "exact: True segments: 1" in run.stdout
