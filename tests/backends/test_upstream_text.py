"""The text side of a checkpoint, read without its weights."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ghostkv.backends.upstream_text import read_text
from ghostkv.errors import ModelError
from ghostkv.model.checkpoint import open_checkpoint


@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_it_says_what_the_checkpoint_does(kind: str, small_hf: Path, small_gguf: Path) -> None:
    path = small_hf if kind == "directory" else small_gguf
    text, whole = read_text(path), open_checkpoint(path)
    assert (text.name, text.template) == (whole.name, whole.template)
    assert text.tokenizer.digest == whole.tokenizer.digest
    assert text.context == whole.shape.context
    assert text.kv_bytes_per_token == whole.shape.kv_bytes_per_token(2)


def test_no_weights_are_needed(small_hf: Path, tmp_path: Path) -> None:
    for file in small_hf.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
    assert read_text(tmp_path).tokenizer.digest == read_text(small_hf).tokenizer.digest
    for wrong in (tmp_path / "absent", tmp_path / "config.json"):
        with pytest.raises(ModelError, match=r"neither a directory"):
            read_text(wrong)


def test_no_torch_is_needed() -> None:
    """An upstream's front needs no second of import for it, and no memory."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['numba'] = None\n"
        "import ghostkv.backends.openai_http, ghostkv.session.worker, ghostkv.launch, ghostkv.service"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
