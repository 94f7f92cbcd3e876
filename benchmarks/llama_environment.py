"""llama.cpp built for this processor, in a directory of its own. Needs cmake and a C++ compiler."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

SDIST = "llama-cpp-python==0.3.36"  # whose source archive carries the whole of llama.cpp
_TARGETS = ("llama-server", "llama-batched-bench", "llama-quantize")
_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",  # every instruction set of this processor
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
)


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The programs of one build."""

    directory: Path

    @property
    def server(self) -> Path:
        """An OpenAI-compatible server."""
        return self.directory / "build" / "bin" / "llama-server"

    @property
    def batched_bench(self) -> Path:
        """Times prompts and decoding of many sequences."""
        return self.directory / "build" / "bin" / "llama-batched-bench"

    @property
    def quantize(self) -> Path:
        """Writes a GGUF file in another type."""
        return self.directory / "build" / "bin" / "llama-quantize"


def llama_cpp(directory: Path, jobs: int = 2) -> LlamaCpp:
    """llama.cpp in `directory`; fetched and built on first use (7-10 minutes on two cores)."""
    found = LlamaCpp(directory)
    if (directory / "ready").exists():
        return found
    print(f"building llama.cpp ({SDIST}) in {directory}", file=sys.stderr, flush=True)
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "source"
    if not source.exists():
        _fetch(directory, source)
    build = str(directory / "build")
    subprocess.run(["cmake", "-S", str(source), "-B", build, *_OPTIONS], check=True, stdout=sys.stderr)
    command = ["cmake", "--build", build, "--parallel", str(jobs), "--target", *_TARGETS]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (directory / "ready").touch()
    return found


def quantized(found: LlamaCpp, gguf: Path, kind: str, target: Path) -> Path:
    """`gguf` in type `kind` (such as "Q8_0") as `target`, by llama.cpp's own tool; made on first use.

    A quantised `gguf` is dequantised first, so the result approximates the values that it stands for.
    """
    if not target.exists():
        draft = target.with_suffix(".draft")
        command = [str(found.quantize), "--allow-requantize", str(gguf), str(draft), kind]
        subprocess.run(command, check=True, stdout=sys.stderr)
        draft.replace(target)
    return target


def _fetch(directory: Path, source: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
        name = SDIST.partition("==")[0]
        subprocess.run([*pip, "--no-binary", name, "--dest", scratch, SDIST], check=True)
        archive = next(Path(scratch).glob("*.tar.gz"))
        with tarfile.open(archive) as opened:
            opened.extractall(scratch, filter="data")
        next(Path(scratch).glob("*/vendor/llama.cpp")).rename(source)


def main() -> None:
    from ghostkv.config import cache_dir

    llama_cpp(cache_dir() / "peers" / "llama.cpp", *map(int, sys.argv[1:2]))


if __name__ == "__main__":
    main()
