"""Quality that stands beside a speed: of that configuration, or it says that it is another's or unknown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ghostkv.pressure.engines import Engine
from ghostkv.pressure.ghost import Ghost
from ghostkv.pressure.peers import LlamaServer, Running, Vllm
from ghostkv.pressure.quality import Results


def interval(estimate: float, width: float) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate - width / 2, "high": estimate + width / 2}


def continuity(command: str = "", dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    return {"commit": "c", "command": command, "dtype": dtype, "kv_dtype": "auto", **more}


def read(arm: str, extra: dict[str, float]) -> dict[str, Any]:
    return {"texts": {"prose": {"parts": [{"arm": arm, "extra": extra}]}}}


def recalled(arm: str, exact: dict[str, float], distance: int = 5) -> dict[str, Any]:
    return {"source": "invented", "cells": [{"distance": distance, "arms": {arm: {"exact": exact}}}]}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    rows = [
        continuity(perplexity=read("segment", interval(0.17, 0.02)), recall=recalled("segment", interval(0.8, 0.1))),
        continuity(perplexity=read("segment", interval(0.12, 0.2)), recall=recalled("segment", interval(0.5, 0.4))),
        continuity("--targets 64", perplexity=read("segment", interval(0.05, 0.001))),
        continuity(perplexity=read("sink window, equal peak", interval(0.1, 0.02))),
        continuity(recall=recalled("segment", interval(0.7, 0.3)), dtype="int8"),
        continuity(recall=recalled("full", interval(0.6, 0.2))),
        continuity(recall=recalled("segment", interval(0.1, 0.001), distance=50)),
    ]
    (tmp_path / "continuity.jsonl").write_text("\n".join(map(json.dumps, rows)))
    weights = [("beagle.txt", "int8", "auto", 0.9), ("beagle.txt", "int8", "auto", 0.005), ("x", "int8", "auto", 7.0)]
    weights.append(("beagle.txt", "bfloat16", "int8", 0.001))
    lines = [
        {"text": text, "dtype": dtype, "kv_dtype": kv, "extra_nats": interval(nats, 0.1), "run": {"commit": "w"}}
        for text, dtype, kv, nats in weights
    ]
    (tmp_path / "weights.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return Results.read(tmp_path)


@pytest.mark.parametrize(
    "engine,flushes,nats,recall,same",
    [
        (Ghost("segment"), 9, 0.17, 0.8, True),  # the run that knows most, of the policy's own length
        (Ghost("auto"), 0, 0.0, 0.6, True),
        (Ghost("auto"), 1, 0.17, 0.8, True),
        (Ghost("segment", "int8"), 9, 0.175, 0.7, True),
        (Ghost("segment", "int8", "int8"), 9, 0.176, 0.8, False),
        (Ghost("sink_window"), 0, 0.1, None, None),
        (Vllm(Path(), Path()), 0, 0.0, 0.6, True),
        (LlamaServer(Path(), Path(), "Q8_0"), 0, None, 0.6, False),
        (LlamaServer(Path(), Path(), "Q8_0", shift=True), 0, None, None, None),
        (Running("http://127.0.0.1:1"), 0, None, None, None),
    ],
)
def test_of_each_configuration(
    results: Results, engine: Engine, flushes: int, nats: float | None, recall: float | None, same: bool | None
) -> None:
    found = results.of(engine, {"flushes": flushes})
    assert found["extra_nats"] == nats
    assert (found["recall"] and found["recall"]["exact"]) == recall
    assert (found["recall"] and found["recall"]["same_precision"]) == same


def test_without_results_nothing_is_claimed(tmp_path: Path) -> None:
    found = Results.read(tmp_path).of(Ghost("segment"), {})
    assert (found["extra_nats"], found["recall"]) == (None, None)
    assert found["parts"]["residency"]["source"] == "not evaluated"
