"""Models by org/name, through the real client, from a local fake of the Hub's HTTP interface."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from ghostkv.errors import ModelError, ModelNotFound
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.hub import fetch, hub_name
from ghostkv.model.pull import resolve_model, served_name
from hub_server import COMMIT, Hub, serving_hub

OTHERS = {
    "README.md": b"words",
    "pytorch_model.bin": b"pickled",
    "consolidated.safetensors": b"the weights once more",
    "adapter_model.safetensors": b"parts of other weights",
    "onnx/model.safetensors": b"for something else",
}


@pytest.fixture
def hub(small_hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {file.name: file.read_bytes() for file in sorted(small_hf.iterdir())}
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with serving_hub(Hub(files | OTHERS)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def silent(_: str) -> None: ...


@pytest.mark.parametrize("name", ["org/small", "org/small@main", "org/small@v1", f"org/small@{COMMIT}"])
def test_a_model_by_name(hub: Hub, small_hf: Path, name: str) -> None:
    lines: list[str] = []
    found = resolve_model(name, lines.append)
    first, second = open_checkpoint(found), open_checkpoint(small_hf)
    assert (first.digest, first.shape, first.template) == (second.digest, second.shape, second.template)
    assert {file.name for file in found.iterdir()} == {file.name for file in small_hf.iterdir()}
    assert not [line for line in hub.asked if any(other in line for other in OTHERS)]
    assert all(line.startswith("org/small: ") for line in lines)
    size = sum(len(content) for name, content in hub.files.items() if name not in OTHERS) / 1e6
    assert f"org/small: {size:.1f} of {size:.1f} MB" in lines
    downloads = [line for line in hub.asked if line.startswith("GET /org/")]
    assert resolve_model(name, silent) == found
    assert [line for line in hub.asked if line.startswith("GET /org/")] == downloads


def test_a_download_that_breaks_off_goes_on(hub: Hub, small_hf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)  # what is written at a time
    hub.cut_at = 100_000
    found = fetch("org/small", silent)
    assert hub.ranges == ["model.safetensors bytes=100000-"]
    assert open_checkpoint(found).digest == open_checkpoint(small_hf).digest


def test_offline_what_is_here_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = fetch("org/small", silent), len(hub.asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    huggingface_hub.close_session()
    assert fetch("org/small", silent) == found
    assert len(hub.asked) == asked
    with pytest.raises(ModelError, match=r"org/other: cannot be downloaded: .*HF_HUB_OFFLINE"):
        fetch("org/other", silent)


def test_a_hub_that_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"org/small: cannot be downloaded: .*HF_ENDPOINT"):
        fetch("org/small", silent)


def test_unknown_names_and_revisions(hub: Hub) -> None:
    with pytest.raises(ModelNotFound, match=r"no model 'org/missing'.*HF_TOKEN"):
        resolve_model("org/missing", silent)
    with pytest.raises(ModelNotFound, match="org/small has no revision 'v9'"):
        resolve_model("org/small@v9", silent)


def test_gated(hub: Hub) -> None:
    hub.gated = True
    with pytest.raises(ModelError, match="org/small is gated: accept its terms"):
        fetch("org/small", silent)


def test_without_safetensors(hub: Hub) -> None:
    del hub.files["model.safetensors"]
    with pytest.raises(ModelError, match=r"no \*\.safetensors"):
        fetch("org/small", silent)


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_name("org/name@refs/pr/3") == "org/name"
    assert (
        hub_name("a/b/c")
        is hub_name("name")
        is hub_name("/a/b")
        is hub_name("../b")
        is hub_name("models/a.gguf")
        is None
    )
    assert (served_name("smollm2"), served_name("org/name@v1")) == ("smollm2", "org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert served_name("org/name") == ""
    assert resolve_model("org/name", silent) == Path("org/name")  # what is on disk comes first
