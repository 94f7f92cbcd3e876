"""Plans through the API: asked for in the extension, answered in document order, refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services import Service

ASK = {"model": "small", "messages": [{"role": "user", "content": "Tell me of the sea."}], "max_tokens": 24, "seed": 4}
PARTS = [{"title": "Waves"}, {"title": "Tides", "target": 2}, {"title": "End", "depends_on": [0, 1]}]


def post(small: Service, path: str = "/v1/chat/completions", **fields: Any) -> Any:
    return small.http.post(path, json={**ASK, "model": small.worker.name, **fields})


def test_a_planned_answer(small: Service) -> None:
    reply = post(small, ghostkv={"plan": PARTS}, ignore_eos=True).json()
    assert reply["usage"]["completion_tokens"] == 24
    said = reply["ghostkv"]
    assert (said["exact"], said["discarded_tokens"], said["segments"]) == (False, 0, 3)
    assert said["plan"]["source"] == "given"
    assert [node["max_tokens"] for node in said["plan"]["nodes"]] == [6, 12, 6]
    assert post(small, ghostkv={"plan": PARTS}, ignore_eos=True).json()["choices"] == reply["choices"]
    with small.http.stream(
        "POST",
        "/v1/chat/completions",
        json={**ASK, "model": small.worker.name, "stream": True, "ignore_eos": True, "ghostkv": {"plan": PARTS}},
    ) as stream:
        chunks = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == reply["choices"][0]["message"]["content"]
    assert chunks[-1]["ghostkv"]["plan"] | {"seconds": 0} == said["plan"] | {"seconds": 0}


def test_a_prompt_that_asks_for_nothing_is_answered_as_without_a_plan(small: Service) -> None:
    plain, auto = post(small).json(), post(small, ghostkv={"plan": "auto"}).json()
    assert auto["choices"] == plain["choices"]
    assert "plan" not in plain["ghostkv"]
    assert auto["ghostkv"]["exact"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ghostkv": {"plan": "always"}}, "ghostkv.plan"),
        ({"ghostkv": {"plan": 3}}, "ghostkv.plan"),
        ({"ghostkv": {"plan": [{"title": "a"}, {"title": "b", "depends_on": [1]}]}}, "ghostkv.plan[1].depends_on"),
        ({"ghostkv": {"plan": [{"goal": "a"}]}}, "ghostkv.plan[0].title"),
        ({"ghostkv": {"plan": "auto"}, "n": 2}, "n"),
        ({"ghostkv": {"plan": "model"}, "logprobs": True}, "logprobs"),
        ({"ghostkv": {"plan": PARTS}, "min_tokens": 3}, "min_tokens"),
    ],
)
def test_refusals(small: Service, fields: dict[str, Any], param: str) -> None:
    reply = post(small, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_a_raw_prompt_has_no_plan(small: Service) -> None:
    body = {"model": small.worker.name, "prompt": "sea", "ghostkv": {"plan": "auto"}}
    reply = small.http.post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "ghostkv.plan")
