"""The command line, over a small random model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import Result
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from checkpoints import write_hf_checkpoint
from ghostkv import demo as demo_module
from ghostkv.bench import engine
from ghostkv.cli import app
from ghostkv.model import gemm

SMALL = ["--dtype", "float32", "--kv-budget", "2MiB"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf_checkpoint(tmp_path_factory.mktemp("cli") / "tiny", context=2048))


def run(*args: str, input: str | None = None) -> Any:
    return CliRunner().invoke(app, list(args), input=input)


@pytest.mark.parametrize("command", [[], ["demo"], ["generate"], ["chat"], ["serve"], ["verify"], ["models", "pull"]])
def test_help(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_generate_forms_of_the_prompt(model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("hello")
    options = ["--model", model, "--max-tokens", "12", "--seed", "3", *SMALL]
    results = [
        run("generate", "hello", *options),
        run("generate", "--file", str(file), *options),
        run("generate", "-", *options, input="hello"),
    ]
    assert [result.exit_code for result in results] == [0, 0, 0]
    assert len({result.stdout for result in results}) == 1
    assert "auto: exact; 1 segment; " in results[0].stderr
    assert "+ 12 tokens" in results[0].stderr
    raw = run("generate", "hello", "--raw", *options)
    assert raw.exit_code == 0
    assert raw.stdout != results[0].stdout


def test_generate_writes_a_trace(model: str, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    lengths = ["--max-tokens", "300", "--min-tokens", "300", "--residency", "segment"]
    result = run("generate", "hello", "--model", model, "--trace", str(trace), *lengths, *SMALL)
    assert result.exit_code == 0
    assert "not exact" in result.stderr
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    segments = [line for line in lines if line["kind"] == "segment"]
    assert sum(line["usage"]["generated_tokens"] for line in segments) == 300
    steps = [line for line in lines if line["kind"] == "step"]
    drawn = sum(step["decode_rows"] + step["accepted"] for step in steps)
    assert drawn + len(segments) == 300  # a segment's first token is drawn where its prompt ends


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["generate", "hi", "--model", "no-such"],
            "error: no model 'no-such': it is no path, no org/name of the Hugging Face Hub, and the known names are",
        ),
        (["generate", "hi", "--kv-budget", "much"], "error: 'much' is not a size"),
        (["generate", "hi", "--temperature", "9"], "error: temperature must be between 0.0 and 2.0, not 9.0"),
        (["generate", "hi", "--residency", "mine"], "error: 'mine' is not a residency policy"),
        (["generate", "hi", "--kv-budget", "64KiB"], "error: the KV pool holds"),
        (["generate", "--file", "/no/such/file"], "error: /no/such/file: cannot be read"),
        (["serve", "--host", "999.1.1.1"], "error: cannot listen on 999.1.1.1"),
        (["models", "pull", "no-such"], "error: no model 'no-such': it is no path, no org/name"),
        (["models", "inspect", "/no/such/model"], "error: no model '/no/such/model'"),
        (["verify", "--model", "/no/such/model"], "error: no model '/no/such/model'"),
    ],
)
def test_errors_are_one_line(model: str, args: list[str], said: str) -> None:
    if args[0] == "generate" and "--model" not in args:
        args = [*args, "--model", model, "--dtype", "float32"]
    result: Result = run(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("lost", ["lm_head.weight", "model.layers.1.self_attn.q_proj.weight"])
def test_nothing_is_served_with_a_tensor_missing(tmp_path: Path, lost: str) -> None:
    """D19."""
    path = write_hf_checkpoint(tmp_path / "broken", tied=False)
    tensors = load_file(path / "model.safetensors")
    del tensors[lost]
    save_file(tensors, path / "model.safetensors")
    result = run("serve", "--model", str(path), "--port", "0", *SMALL)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ") and f"{lost} is missing" in result.stderr
    assert result.stdout == ""


def test_generate_without_a_prompt_is_a_usage_error() -> None:
    for args in ([], ["hi", "--file", "x"]):
        result = run("generate", *args)
        assert result.exit_code == 2
        assert "--file" in result.stderr


def test_chat_keeps_the_history(model: str) -> None:
    options = ["--model", model, "--max-tokens", "8", "--seed", "1", *SMALL]
    result = run("chat", *options, input="hello\nagain\n")
    assert result.exit_code == 0
    prompts = [int(found) for found in re.findall(r"(\d+) \+ \d+ tokens", result.stderr)]
    assert len(prompts) == 2
    assert prompts[1] > 2 * prompts[0]
    assert run("chat", *options, input="hello\n\nnever read\n").stderr.count("tokens") == 1


def test_models_check_prints_the_report(model: str, private_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "CHECK_ROWS", 9)  # the check itself is tested elsewhere
    result = run("models", "check", "--model", model, "--dtype", "float32", "--again")
    assert result.exit_code == 0
    assert re.search(r"[1-9] of \d measured now", result.stdout)
    again = run("models", "check", "--model", model, "--dtype", "float32")
    assert again.stdout.splitlines()[:-1] == result.stdout.splitlines()[:-1]
    assert "0 of" in again.stdout


def test_models(model: str) -> None:
    assert "smollm2" in run("models", "list").stdout
    inspected = run("models", "inspect", model)
    assert inspected.exit_code == 0
    assert "1,024 bytes" in inspected.stdout  # 2 x 2 layers x 2 KV heads x 64 x 2 bytes = 1,024


def test_bench_engine(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def small_ids(count: int, length: int, vocab: int) -> list[tuple[int, ...]]:
        return [tuple(range(10 * i, 10 * i + length)) for i in range(1, count + 1)]

    monkeypatch.setattr(engine, "prompts", small_ids)  # the real ones need a vocabulary of thousands
    sizes = ["--sequences", "1,3", "--prompt", "4", "--tokens", "4", "--repeats", "1"]
    result = run("bench", "engine", "--model", model, "--dtype", "float32", *sizes)
    assert result.exit_code == 0, result.output
    assert "tokens/s" in result.stdout
    for wrong in ("", "1,x", "0", "129"):
        refused = run("bench", "engine", "--model", model, "--sequences", wrong)
        assert (refused.exit_code, refused.stderr[:18]) == (1, "error: --sequences")


def test_demo(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """34 blocks, as in the real demo; the random model's prompt is longer, so fewer tokens do."""
    monkeypatch.setenv("COLUMNS", "120")
    result = run("demo", "--model", model, "--tokens", "500", "--kv-budget", "544KiB", "--out", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "out" / "trace.jsonl").read_text().splitlines()]
    header = lines[0]
    assert header["kv_budget"] == 34 * 16 * header["kv_bytes_per_token"]
    steps = [line for line in lines if line["kind"] == "step"]
    assert 0 < max(line["live_blocks"] for line in steps) <= 34
    segments = [line for line in lines if line["kind"] == "segment"]
    assert sum(line["usage"]["generated_tokens"] for line in segments) == 500
    assert len(segments) >= 3
    assert (tmp_path / "out" / "memory.png").read_bytes().startswith(b"\x89PNG")
    assert "within the budget of" in " ".join(result.stdout.split())


def test_the_demo_prompt_is_that_of_the_article() -> None:
    assert demo_module.PROMPT == (
        "Write a science fiction story about an artificial intelligence that develops its own emotions while helping "
        "to colonize Mars. Begin with the AI's first awakening."
    )
    assert (demo_module.Story().tokens, demo_module.Story().kv_budget) == (1500, "12MiB")


@pytest.fixture
def server(model: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "ghostkv", "serve", "--model", model, "--port", "0", *SMALL]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"serving tiny at (http://127\.0\.0\.1:\d+)/v1", line)
    assert found, line
    yield process, found[1]
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_serve_until_a_signal(server: tuple[subprocess.Popen[str], str]) -> None:
    """A running answer ends by itself, nothing new is accepted, and the exit is clean."""
    process, url = server
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 600, "min_tokens": 600, "stream": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as reply:
        lines = (line for line in reply.iter_lines() if line)
        next(lines)
        os.kill(process.pid, signal.SIGTERM)
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
    assert process.wait(30) == 0
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{url}/health")
    assert process.stderr is not None
    assert all(" INFO " in line for line in process.stderr)  # the log of requests and nothing else


def test_a_second_signal_ends_at_once(server: tuple[subprocess.Popen[str], str]) -> None:
    """Of D08; the rest of it is in server/test_process.py."""
    process, url = server
    body = {"model": "tiny", "prompt": "abc", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=20) as reply:
        lines = reply.iter_lines()  # as long as it lives, so does the connection
        next(lines)
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        os.kill(process.pid, signal.SIGINT)
        started = time.perf_counter()
        assert process.wait(30) == 128 + signal.SIGINT
        assert time.perf_counter() - started < 5  # of the ten that draining may take
