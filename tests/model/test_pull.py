"""Pulling a model by name, with the real pip and a local wheel in place of the network."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ghostkv.errors import ModelError, ModelNotFound
from ghostkv.model import pull as module
from ghostkv.model.pull import KNOWN, KnownModel, pull, resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 100


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private_cache: Path) -> KnownModel:
    """A model "tiny" in a wheel that pip finds in a local directory; pip may use nothing else."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", CONTENT)
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: a-package-that-does-not-exist\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    model = KnownModel("tiny-model", "1.0", digest, "tiny_model/tiny.gguf", "Apache-2.0", 1)
    monkeypatch.setattr(module, "KNOWN", {"tiny": model})
    return model


def test_pull_once(known: KnownModel, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    path = pull("tiny", lines.append)
    assert path == private_cache / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert [line.split(":")[0] for line in lines] == ["tiny"] * 3
    assert list(path.parent.iterdir()) == [path]  # neither wheel nor scratch directory
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert pull("tiny", lines.append) == path  # from the cache: no pip, no message
    assert len(lines) == 3


def refused(private_cache: Path) -> str:
    with pytest.raises(ModelError) as caught:
        pull("tiny", lambda _: None)
    assert not [path for path in private_cache.rglob("*") if path.is_file()]
    return caught.value.message


def test_offline(known: KnownModel, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    message = refused(private_cache)
    assert "tiny-model==1.0" in message
    assert "No matching distribution" in message or "Could not find" in message
    assert "pass the path of a model file" in message


def test_another_wheel_than_expected(known: KnownModel, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN", {"tiny": replace(known, sha256="0" * 64)})
    message = refused(private_cache)
    assert known.sha256 in message
    assert "0" * 64 in message


def test_wheel_without_the_model(known: KnownModel, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN", {"tiny": replace(known, member="tiny_model/other.gguf")})
    assert "other.gguf" in refused(private_cache)


def test_cache_that_cannot_be_written(known: KnownModel, private_cache: Path) -> None:
    private_cache.write_text("a file where the directory should be")
    with pytest.raises(ModelError, match="cannot be written"):
        pull("tiny", lambda _: None)


def test_resolve(known: KnownModel, tmp_path: Path) -> None:
    def silent(_: str) -> None: ...

    file = tmp_path / "own.gguf"
    file.touch()
    assert resolve_model(str(file), silent) == file
    assert resolve_model("tiny", silent).read_bytes() == CONTENT
    with pytest.raises(ModelNotFound, match=r"nothing-here.*tiny"):
        resolve_model("nothing-here", silent)
    with pytest.raises(ModelNotFound, match="unknown"):
        pull("unknown", silent)


def test_the_real_model(smollm2_path: Path) -> None:
    assert smollm2_path.name == Path(KNOWN["smollm2"].member).name
    assert smollm2_path.stat().st_size == 98_362_432
    with smollm2_path.open("rb") as file:
        assert file.read(4) == b"GGUF"
