"""BOS, end ids and chat template of a Hugging Face directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer
from tokenizers.processors import TemplateProcessing

from ghostkv.errors import ModelError
from ghostkv.model.checkpoint import open_checkpoint


@pytest.fixture
def directory(tmp_path: Path, small_hf: Path) -> Path:
    return shutil.copytree(small_hf, tmp_path / "m")


def edit(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_end_ids_come_from_the_first_file_that_has_them(directory: Path) -> None:
    assert open_checkpoint(directory).tokenizer.eos_ids == (2, 0)
    (directory / "generation_config.json").unlink()
    assert open_checkpoint(directory).tokenizer.eos_ids == (2,)
    edit(directory / "config.json", eos_token_id=[0, 1])
    assert open_checkpoint(directory).tokenizer.eos_ids == (0, 1)
    edit(directory / "config.json", eos_token_id=None)
    edit(directory / "tokenizer_config.json", eos_token={"content": "<|endoftext|>", "lstrip": False})
    assert open_checkpoint(directory).tokenizer.eos_ids == (0,)


def test_end_id_outside_the_vocabulary(directory: Path) -> None:
    edit(directory / "generation_config.json", eos_token_id=99999)
    with pytest.raises(ModelError, match="99999"):
        open_checkpoint(directory)


def test_bos(directory: Path) -> None:
    tokenizer = open_checkpoint(directory).tokenizer
    assert (tokenizer.bos_id, tokenizer.add_bos) == (1, False)
    edit(directory / "tokenizer_config.json", add_bos_token=True, bos_token="<|endoftext|>")
    tokenizer = open_checkpoint(directory).tokenizer
    assert (tokenizer.bos_id, tokenizer.add_bos) == (0, True)
    edit(directory / "tokenizer_config.json", bos_token=None)
    with pytest.raises(ModelError, match="BOS"):
        open_checkpoint(directory)


def test_bos_of_the_post_processor(directory: Path) -> None:
    """Llama 3 style: no add_bos_token; the tokenizer's template puts BOS first."""
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    del settings["add_bos_token"]
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    assert not open_checkpoint(directory).tokenizer.add_bos
    inner = HfTokenizer.from_file(str(directory / "tokenizer.json"))
    inner.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    inner.save(str(directory / "tokenizer.json"))
    tokenizer = open_checkpoint(directory).tokenizer
    assert (tokenizer.bos_id, tokenizer.add_bos) == (1, True)
    assert 1 not in tokenizer.encode("text")


def test_template(directory: Path) -> None:
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    edit(directory / "tokenizer_config.json", chat_template=several)
    assert open_checkpoint(directory).template == "plain"
    (directory / "chat_template.jinja").write_text("from a file")
    assert open_checkpoint(directory).template == "from a file"
    (directory / "chat_template.jinja").unlink()
    edit(directory / "tokenizer_config.json", chat_template=None)
    assert open_checkpoint(directory).template is None


def test_name_is_the_directory_or_the_stem(directory: Path, small_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_checkpoint(directory).name == "m"
    assert open_checkpoint(small_gguf).name == "small"
    monkeypatch.chdir(directory)
    assert open_checkpoint(Path()).name == "m"
