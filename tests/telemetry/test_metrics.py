"""Metrics against what clients and engine say themselves, read by Prometheus's own parsers while requests run."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families as plain_families

from ghostkv.backends.base import UpstreamState
from ghostkv.server.access import Tenant
from ghostkv.server.serving import Serving
from ghostkv.session.fleet import Fleet
from ghostkv.telemetry.metrics import wants_openmetrics
from ghostkv.telemetry.tally import Tally
from ghostkv.telemetry.tenant_metrics import MOST_TENANTS, OTHERS, TenantMetrics
from keys import access, key_of
from scraping import OPENMETRICS, Scrape, parsed
from services import Scripted, ScriptedBackend, Service, saying, scripted_worker, serving

HI: list[Any] = [{"role": "user", "content": "hi"}]
WITHOUT_END = saying("word " * 2000)
DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def chat(service: Service, **more: Any) -> httpx2.Response:
    return service.http.post("/v1/chat/completions", json={"model": "scripted", "messages": HI, **more})


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_counters_say_what_the_reply_says(scripted: Scripted) -> None:
    service = scripted(WITHOUT_END)
    before = Scrape.of(service.http)
    body = chat(service, max_tokens=500, ghostkv={"residency": "segment"}).json()
    after, own = Scrape.of(service.http), body["ghostkv"]
    assert own["segments"] >= 3 and own["rehydrated_tokens"] > 0  # else it proves nothing
    for name, value in {
        "vllm:prompt_tokens_total": body["usage"]["prompt_tokens"],
        "vllm:generation_tokens_total": body["usage"]["completion_tokens"],
        "vllm:request_generation_tokens_sum": body["usage"]["completion_tokens"],
        "vllm:inter_token_latency_seconds_count": body["usage"]["completion_tokens"] - 1,
        "vllm:time_to_first_token_seconds_count": 1,
        "ghostkv_segments_total": own["segments"],
        "ghostkv_rehydrated_tokens_total": own["rehydrated_tokens"],
        "ghostkv_carried_tokens_total": own["carried_tokens"],
        "ghostkv_recalled_tokens_total": own["recalled_tokens"],
        "ghostkv_payload_bytes_count": own["segments"] - 1,
        "ghostkv_answers_running": 0,
    }.items():
        assert after[name] - before[name] == value, name
    assert after.get("vllm:request_success_total", finished_reason="length") == 1
    assert after.get("ghostkv_boundaries_total", decision="flush") == own["segments"] - 1
    assert after.get("ghostkv_answers_total", exact="false") == 1
    for phase in ("recall", "render", "extract", "merge", "schedule", "prefill"):
        assert after.get("ghostkv_boundary_seconds_count", phase=phase) == own["segments"] - 1, phase
    first, whole = after["vllm:time_to_first_token_seconds_sum"], after["vllm:e2e_request_latency_seconds_sum"]
    assert 0 < first < whole < after["ghostkv_http_seconds_sum"]
    assert first + after["vllm:inter_token_latency_seconds_sum"] == pytest.approx(whole, abs=0.5)
    assert after["ghostkv_recomputed_tokens_total"] <= own["rehydrated_tokens"]


def test_a_real_engine_says_what_it_counts(small: Service) -> None:
    before = Scrape.of(small.http)
    reply = small.http.post(
        "/v1/completions",
        json={"model": small.worker.name, "prompt": [7] * 40, "max_tokens": 9, "ignore_eos": True, "temperature": 0},
    )
    after = Scrape.of(small.http)
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 9
    assert after["vllm:prefix_cache_queries_total"] - before["vllm:prefix_cache_queries_total"] == 40
    assert after["ghostkv_engine_step_seconds_total"] > before["ghostkv_engine_step_seconds_total"]
    blocks = after["ghostkv_kv_budget_bytes"] / small.worker.backend.capabilities().kv_bytes_per_token / 16
    assert after["ghostkv_cached_blocks"] + after["ghostkv_free_blocks"] == blocks
    assert reply.json()["usage"]["completion_tokens"] == 9


def test_a_prompt_counts_once_and_an_answer_each(scripted: Scripted) -> None:
    service = scripted(saying("hello"))
    usage = chat(service, n=3).json()["usage"]
    found = Scrape.of(service.http)
    assert found["vllm:prompt_tokens_total"] == usage["prompt_tokens"]
    assert found["vllm:request_prompt_tokens_count"] == 3
    assert found.get("vllm:request_success_total", finished_reason="stop") == 3
    assert found["vllm:prefix_cache_queries_total"] == 3 * usage["prompt_tokens"]
    assert found["vllm:prefix_cache_hits_total"] <= found["vllm:prefix_cache_queries_total"]


def test_both_formats_say_the_same(scripted: Scripted) -> None:
    service = scripted(WITHOUT_END)
    chat(service, max_tokens=300)
    chat(service, model="none")
    service.http.get("/metrics")  # a route's first reply adds series
    strict = Scrape.of(service.http)
    reply = service.http.get("/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    plain = {(s.name, *sorted(s.labels.items())): s.value for f in plain_families(reply.text) for s in f.samples}
    other = {(s.name, *sorted(s.labels.items())): s.value for s in strict.samples}
    assert plain.keys() == other.keys()
    moving = {name for name in plain if str(name[0]).startswith("ghostkv_http_")}
    assert {k: v for k, v in plain.items() if k not in moving} == {k: v for k, v in other.items() if k not in moving}
    assert any(name[0] == "vllm:num_requests_running" for name in plain)


@pytest.mark.parametrize(
    ("accept", "strict"),
    [
        ("", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", True),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.1", False),
        ("APPLICATION/OPENMETRICS-TEXT ; Q=1", True),
        ("application/openmetrics-text;q=0", False),
    ],
)
def test_the_format_follows_the_accept_header(accept: str, strict: bool) -> None:
    assert wants_openmetrics(accept) is strict


@given(st.text(st.sampled_from("application/openmetrics-text,plain;q=.10nif- ")) | st.text())
def test_no_accept_header_is_too_odd(accept: str) -> None:
    wants_openmetrics(accept)


def test_refusals_generate_nothing_and_names_of_clients_are_no_labels(scripted: Scripted) -> None:
    service = scripted(saying("hello"))
    chat(service)
    before = Scrape.of(service.http)
    for index in range(20):
        assert chat(service, model=f"secret-{index}").json()["error"]["code"] == "model_not_found"
        assert service.http.get(f"/v1/models/secret-{index}").status_code == 404
        assert service.http.get(f"/secret-{index}").status_code == 404
        service.http.request(f"SECRET{index}", "/v1/models")
        chat(service, max_tokens=-1, user=f"secret-{index}")
    after = Scrape.of(service.http)
    assert after["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"]
    assert after["vllm:time_to_first_token_seconds_count"] == 1
    assert after.get("ghostkv_refused_total", code="model_not_found") == 40
    assert after.get("ghostkv_refused_total", code="invalid_request") == 20
    assert after.get("ghostkv_http_requests_total", route="other", method="GET", status="404") == 20
    assert not [label for label in after.labels if "secret" in label[2].lower()]
    assert len(after.labels) < len(before.labels) + 120  # twelve bounds for each of a few routes


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_brings_the_gauges_back(scripted: Scripted, stream: bool) -> None:
    service = scripted(WITHOUT_END, seconds=0.005)
    body = {"model": "scripted", "messages": HI, "max_tokens": 5000, "stream": stream}
    for _ in range(3):
        with httpx2.Client(base_url=service.url, timeout=0.3) as leaving:
            if stream:
                with leaving.stream("POST", "/v1/chat/completions", json=body) as reply:
                    lines = reply.iter_lines()  # as long as it lives, so does the connection
                    next(lines)
                    busy = Scrape.of(service.http)
                    assert busy["vllm:num_requests_running"] == busy["ghostkv_http_streams_open"] == 1
                    assert busy["ghostkv_live_kv_bytes"] > 0 and busy["vllm:kv_cache_usage_perc"] > 0
            else:
                with pytest.raises(httpx2.ReadTimeout):
                    leaving.post("/v1/chat/completions", json=body)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "ghostkv_live_kv_bytes"):
            assert until(lambda name=name: Scrape.of(service.http)[name] == 0), name  # type: ignore[misc]
        assert until(lambda: Scrape.of(service.http)["ghostkv_answers_running"] == 0)
        assert until(lambda: Scrape.of(service.http)["ghostkv_http_streams_open"] == 0)
    generated = Scrape.of(service.http)["vllm:generation_tokens_total"]
    assert chat(service, max_tokens=2).status_code == 200
    after = Scrape.of(service.http)
    assert after["vllm:generation_tokens_total"] == generated + 2
    assert after.get("vllm:request_success_total", finished_reason="abort") == 3


@pytest.mark.parametrize(("blocks", "waits"), [(512, False), (24, True)])
def test_waits_for_memory_are_counted_where_the_pool_is_tight(scripted: Scripted, blocks: int, waits: bool) -> None:
    service = scripted(WITHOUT_END, blocks=blocks)
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: chat(service, max_tokens=300), range(8)))
    assert [reply.status_code for reply in replies] == [200] * 8
    assert (Scrape.of(service.http)["ghostkv_waits_for_memory_total"] > 0) is waits


def test_scrapes_are_valid_while_requests_run(scripted: Scripted) -> None:
    service = scripted(WITHOUT_END, blocks=96, seconds=0.001)
    read: list[str] = []
    ended = threading.Event()

    def scraping() -> None:
        with httpx2.Client(base_url=service.url, timeout=20) as http:
            while not ended.wait(0.02):
                read.append(http.get("/metrics", headers={"accept": OPENMETRICS}).text)

    def asking(index: int) -> int:
        kind: dict[str, Any] = {"max_tokens": 200, "stream": index % 2 == 0}
        return chat(service, **(kind if index % 5 else {"max_tokens": 10**9})).status_code

    scrapers = [threading.Thread(target=scraping) for _ in range(2)]
    for scraper in scrapers:
        scraper.start()
    with ThreadPoolExecutor(12) as threads:
        codes = list(threads.map(asking, range(24)))
    ended.set()
    for scraper in scrapers:
        scraper.join()
    assert sorted(set(codes)) == [200, 400]
    found = [Scrape(parsed(text)) for text in (*read[:: len(read) // 20 + 1], read[-1])]
    assert len(found) > 5 and max(scrape["vllm:num_requests_running"] for scrape in found) > 1
    _check_sums(found)


def _check_sums(found: list[Scrape]) -> None:
    for scrape in found:
        parts = ("ghostkv_live_blocks", "ghostkv_cached_blocks", "ghostkv_free_blocks")
        assert sum(scrape[name] for name in parts) == 96
        for family in scrape.families.values():
            if family.type == "histogram":
                buckets = [s.value for s in family.samples if s.name.endswith("_bucket") and s.labels["le"] == "+Inf"]
                counts = [s.value for s in family.samples if s.name.endswith("_count")]
                assert buckets == counts, family.name
    last = found[-1]
    for scrape in found:
        for family in scrape.families.values():
            if family.type == "counter":
                for sample in family.samples:
                    assert sample.value <= last.get(sample.name, **sample.labels), sample


@pytest.fixture
def guarded() -> Iterator[Service]:
    worker = scripted_worker(ScriptedBackend(saying("hello")))
    with serving(worker, access=access("alice", "bob", Tenant("root", admin=True))) as service:
        yield service


def test_only_the_administrator_sees_tenants_and_never_their_names(guarded: Service) -> None:
    bearers = {name: {"authorization": f"Bearer {key_of(name)}"} for name in ("alice", "bob", "root")}
    assert guarded.http.get("/metrics").status_code == 401
    for name in ("alice", "alice", "bob"):
        body = {"model": "scripted", "messages": HI}
        assert guarded.http.post("/v1/chat/completions", json=body, headers=bearers[name]).status_code == 200
    alice, root = (Scrape.of(guarded.http, **bearers[name]) for name in ("alice", "root"))
    assert not [name for name in alice.families if "tenant" in name]
    assert {label for _, label, _ in alice.labels}.isdisjoint({"tenant"})
    counts = {s.labels["tenant"]: s.value for s in root.families["ghostkv_tenant_answers"].samples}
    assert sorted(counts.values()) == [1, 2]
    assert not [label for label in root.labels if label[2] in ("alice", "bob", "root")]
    assert root.get("ghostkv_refused_total", code="invalid_api_key") == 1
    assert root["ghostkv_tenant_generation_tokens_total"] == root["vllm:generation_tokens_total"]


def test_tenants_beyond_the_bound_share_a_series() -> None:
    registry = CollectorRegistry()
    metrics = TenantMetrics(registry, lambda name: f"alias of {name}")
    for index in range(MOST_TENANTS + 40):
        metrics.ended(Tally(f"tenant-{index}", 0, 0.0, ended=True))
    [answers] = [family for family in registry.collect() if family.name == "ghostkv_tenant_answers"]
    counts = {s.labels["tenant"]: s.value for s in answers.samples if s.name.endswith("_total")}
    assert len(counts) == MOST_TENANTS + 1
    assert counts["alias of tenant-0"] == 1 and counts[OTHERS] == 40


def test_servers_share_no_registry_and_leave_none_behind() -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(serving(scripted_worker(ScriptedBackend(saying("hello"))))) for _ in range(2))
        chat(one)
        assert Scrape.of(one.http)["vllm:generation_tokens_total"] == 6
        assert Scrape.of(two.http)["vllm:generation_tokens_total"] == 0
    assert not [family for family in REGISTRY.collect() if family.name.startswith(("vllm", "ghostkv"))]


def test_members_of_a_fleet_have_series_of_their_own() -> None:
    workers = [scripted_worker(ScriptedBackend(saying("hello"), blocks=blocks)) for blocks in (64, 128)]
    with serving(Fleet.of(workers)) as service:
        chat(service)
        found = Scrape.of(service.http)
    assert {value for _, label, value in found.labels if label == "model_name"} == {"scripted"}
    names = sorted({value for _, label, value in found.labels if label == "worker"})
    assert names == ["scripted:bfloat16#1", "scripted:bfloat16#2"]
    assert [found.get("ghostkv_kv_budget_bytes", worker=name) for name in names] == [64 * 16, 128 * 16]
    assert found["vllm:generation_tokens_total"] == 6


def test_the_document_lists_what_there_is(scripted: Scripted) -> None:
    service = scripted(WITHOUT_END)
    counted = service.worker.stats
    assert counted is not None
    over = (UpstreamState("http://a", healthy=True, since=0.0, running=0, failovers=0),)
    object.__setattr__(service.worker, "stats", lambda: replace(counted(), upstreams=over))
    chat(service, max_tokens=300)
    chat(service, model="none")
    suffix = {"counter": "_total", "info": "_info"}
    served = {
        (
            family.name + suffix.get(family.type, ""),
            family.type,
            ", ".join(sorted({name for sample in family.samples for name in sample.labels} - {"le"})),
        )
        for family in Scrape.of(service.http).families.values()
    }
    rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \| ([\w, ]*) \| [^|]+ \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) == len(served)
    assert {(name, kind, ", ".join(sorted(filter(None, labels.split(", "))))) for name, kind, labels in rows} == served


def test_a_backend_that_counts_nothing_has_no_samples() -> None:
    worker = scripted_worker(ScriptedBackend(saying("hello")))
    object.__setattr__(worker, "stats", None)
    body, _ = Serving(worker).metrics.text("application/openmetrics-text", tenants=False)
    worker.close()
    assert b"\n# TYPE vllm:num_requests_running gauge\n" in body and b"\nvllm:num_requests_running{" not in body
