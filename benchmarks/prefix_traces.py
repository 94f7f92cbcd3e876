"""Public traces as streams of prompts: which token ids each request asks for, in order of arrival.

Two formats. A Mooncake trace names each 512 tokens of a prompt by a number that stands for all text up to there; ids
are made up so that equal numbers get equal ids, all lengths divided by `scale`. A tau-bench run is a conversation with
its text; each answer of the assistant is one request, rendered by the model's own template. Answers of a Mooncake trace
are unknown, so theirs are ids that never come back.
"""

from __future__ import annotations

import gzip
import heapq
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ghostkv.model.checkpoint import open_checkpoint
from ghostkv.model.pull import resolve_model
from ghostkv.request import Message
from ghostkv.step import BLOCK_TOKENS
from ghostkv.text.template import ChatTemplate

HASHED = 512  # tokens for which a Mooncake trace has one number
ARRIVALS_PER_S = 0.25  # conversations of a tau-bench file; with the waits below about 50 are open at a time
USER_S, TOOL_S, TOKEN_S = 20.0, 1.0, 0.02  # mean wait for a user and for a tool, exponential; time of a token


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `session` names the conversation: its next turn comes after this one is over."""

    session: int
    ids: npt.NDArray[np.int32]  # [prompt + output] tokens
    prompt: int  # tokens, the first of `ids`
    prefixes: npt.NDArray[np.int32]  # [full blocks] number of the exact prefix that ends in each block of `ids`
    at: float  # seconds: when it arrives, or, of a session's later ones, after the answer before it

    @property
    def findable(self) -> list[int]:
        """Prefixes that a cache may have: of the full blocks before the prompt's last token."""
        return [int(prefix) for prefix in self.prefixes[: (self.prompt - 1) // BLOCK_TOKENS]]


def read_trace(path: Path, scale: int, seed: int) -> list[Turn]:
    """All turns of a trace file, plain or gzip, of either format, in order of arrival."""
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    turns = _conversations(json.loads(text), seed) if text.lstrip().startswith("[") else _mooncake(text, scale)
    known: dict[tuple[int, bytes], int] = {}
    return [Turn(session, ids, prompt, _prefixes(ids, known), at) for session, ids, prompt, at in turns]


def _prefixes(ids: npt.NDArray[np.int32], known: dict[tuple[int, bytes], int]) -> npt.NDArray[np.int32]:
    found, above = [], -1
    for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS):
        above = known.setdefault((above, ids[end - BLOCK_TOKENS : end].tobytes()), len(known))
        found.append(above)
    return np.array(found, dtype=np.int32)


_Part = tuple[int, npt.NDArray[np.int32], int, float]  # session, ids, prompt tokens, seconds


def _mooncake(text: str, scale: int) -> Iterator[_Part]:
    width = HASHED // scale
    fresh = 2**31 - 1  # ids of answers, downwards: far above those of prompts
    for number, line in enumerate(text.splitlines()):
        row = json.loads(line)
        prompt = max(1, row["input_length"] // scale)
        named = np.array(row["hash_ids"], dtype=np.int32)[:, None] * width + np.arange(width, dtype=np.int32)
        output = max(1, row["output_length"] // scale)
        fresh -= output
        ids = np.concatenate([named.reshape(-1)[:prompt], np.arange(fresh, fresh + output, dtype=np.int32)])
        yield number, ids, min(prompt, named.size), row["timestamp"] / 1e3


def _conversations(runs: Sequence[Mapping[str, object]], seed: int) -> list[_Part]:
    """Runs in random order, arriving at random; every wait is drawn before the next, so order depends on seed alone."""
    checkpoint = open_checkpoint(resolve_model("smollm2", print))
    template = ChatTemplate(str(checkpoint.template), checkpoint.tokenizer)
    numbers = random.Random(seed)
    order = list(range(len(runs)))
    numbers.shuffle(order)
    begun, timed, tie = 0.0, list[tuple[float, int, _Part]](), 0
    for session in order:
        begun += numbers.expovariate(ARRIVALS_PER_S)
        at = begun
        for number, (ids, prompt, after_tool) in enumerate(_answers(template, runs[session]["traj"])):
            wait = numbers.expovariate(1 / (TOOL_S if after_tool else USER_S))
            at += wait + (len(ids) - prompt) * TOKEN_S
            heapq.heappush(timed, (at, tie, (session, ids, prompt, wait if number else begun + wait)))
            tie += 1
    return [heapq.heappop(timed)[2] for _ in range(len(timed))]


def _answers(template: ChatTemplate, run: object) -> Iterator[tuple[npt.NDArray[np.int32], int, bool]]:
    """Each answer of a run: ids of prompt and answer, tokens of the prompt, whether it follows a tool's result."""
    messages: list[Message] = []
    for entry in run if isinstance(run, list) else []:
        said = entry["content"] or json.dumps(entry.get("tool_calls"))
        message = Message(entry["role"], said)
        if entry["role"] == "assistant":
            prompt = template.render_ids(messages)
            whole = template.render_ids([*messages, message], add_generation_prompt=False)
            if whole[: len(prompt)] != prompt:
                raise SystemExit("the template renders an answer otherwise than it was prompted")
            yield np.array(whole, dtype=np.int32), len(prompt), messages[-1].role == "tool"
        messages.append(message)
