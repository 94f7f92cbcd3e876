"""A tenant cannot tell from any reply or counter what others have sent; a declared share group shares cached blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ghostkv.launch import engine_config, open_worker
from ghostkv.server.access import Tenant
from keys import access, bearer
from services import ScriptedBackend, Service, saying, scripted_worker, serving

TENANTS = (Tenant("alice"), Tenant("bob"), Tenant("carol", "team"), Tenant("dave", "team"), Tenant("team"))
STORY = "The lamp in the north tower burned for 31 days. Ada counted 4 ships. "
SYSTEM = "You are a careful assistant of the harbour office and you answer in whole sentences."


@pytest.fixture(scope="module")
def real(small_hf: Path) -> Iterator[Service]:
    """A small random model, with room for all that these tests cache."""
    worker = open_worker(str(small_hf), engine_config(kv_budget="8MiB", dtype="float32"))
    with serving(worker, access=access(*TENANTS)) as service:
        yield service


def ask(service: Service, tenant: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What the tenant gets, but for ids and times."""
    reply = service.http.post(path, json=body, headers=bearer(tenant))
    assert reply.status_code == 200, reply.text
    return {name: value for name, value in reply.json().items() if name not in ("id", "created")}


def cached(reply: dict[str, Any]) -> int:
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def counted(service: Service, tenant: str, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    """The reply, and how many prompt tokens the engine computed and found for it."""
    stats: Any = service.worker.backend.stats  # type: ignore[attr-defined]
    before = stats.prefill_tokens, stats.cached_tokens
    reply = ask(service, tenant, path, body)
    return reply, stats.prefill_tokens - before[0], stats.cached_tokens - before[1]


def requests(salt: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests over every way in which a prompt reaches the engine; equal salts make equal requests."""
    common = {"model": "small", "seed": 5, "temperature": 1.0, "ignore_eos": True}
    text = f"{salt}: {STORY}"
    messages = [{"role": "system", "content": f"{salt} {SYSTEM}"}, {"role": "user", "content": text}]
    earlier = [*messages, {"role": "assistant", "content": STORY}, {"role": "user", "content": f"Go on, {salt}."}]
    chat = common | {"messages": messages, "max_tokens": 40, "logprobs": True, "top_logprobs": 2}
    longer = {"messages": earlier, "max_tokens": 210, "ghostkv": {"residency": "segment"}}
    return [
        ("/v1/chat/completions", chat | {"ghostkv": {"residency": "full"}}),
        ("/v1/chat/completions", chat | {"n": 2}),
        ("/v1/chat/completions", common | longer),
        ("/v1/completions", common | {"prompt": text, "max_tokens": 30, "logprobs": 1}),
        ("/v1/completions", common | {"prompt": [list(range(60, 130))], "max_tokens": 5, "suffix": ""}),
    ]


@pytest.mark.parametrize("index", range(5))
def test_a_foreign_warm_cache_changes_nothing(real: Service, index: int) -> None:
    """Ids, log-probabilities and counts equal those on a cache that nobody has warmed."""
    path, body = requests(f"Salt{index}")[index]
    cold = counted(real, "alice", path, body)
    foreign = counted(real, "bob", path, body)
    assert foreign == cold
    assert cached(cold[0]) == 0
    own, prefilled, found = counted(real, "alice", path, body)  # the control: a warm cache can be seen
    assert own["choices"] == cold[0]["choices"]
    assert cached(own) > 0
    assert prefilled < cold[1] and found > cold[2]


def test_a_share_group_shares_cached_blocks_with_its_tenants_alone(real: Service) -> None:
    path, body = requests("Shared")[0]
    cold = counted(real, "carol", path, body)
    shared = counted(real, "dave", path, body)
    assert shared[0]["choices"] == cold[0]["choices"]
    assert cached(shared[0]) > 0 == cached(cold[0])
    for outsider in ("bob", "team"):  # also a tenant that is called like the group
        assert counted(real, outsider, path, body) == cold


@contextmanager
def scripted(tenants: Sequence[Tenant]) -> Iterator[Service]:
    worker = scripted_worker(ScriptedBackend(saying("of the harbour and the sea " * 4), blocks=4096))
    with serving(worker, access=access(*tenants)) as service:
        yield service


def test_what_a_tenant_sees_depends_on_its_own_requests_alone() -> None:
    """Non-interference: each tenant's replies among all others' traffic equal those on a server of its own."""
    rng = random.Random(11)
    heads = [f"{'harbour ' * rng.randrange(1, 12)}{number}" for number in range(4)]

    def request(tenant: Tenant) -> tuple[Tenant, dict[str, Any]]:
        turns = [rng.choice(heads) for _ in range(rng.choice((1, 1, 3)))]
        messages = [{"role": ("user", "assistant")[at % 2], "content": head} for at, head in enumerate(turns)]
        residency = rng.choice(("full", "segment"))
        body = {"messages": messages, "max_tokens": rng.randrange(1, 60), "ghostkv": {"residency": residency}}
        return tenant, body | {"model": "scripted", "temperature": 0, "seed": 1, "n": rng.choice((1, 1, 2))}

    traffic = [request(rng.choice(TENANTS)) for _ in range(60)]

    def replies(service: Service, sent: Sequence[tuple[Tenant, dict[str, Any]]]) -> list[dict[str, Any]]:
        return [ask(service, tenant.name, "/v1/chat/completions", body) for tenant, body in sent]

    with scripted(TENANTS) as service:
        together = replies(service, traffic)
    hits = 0
    for trust in ({"alice"}, {"bob"}, {"team"}, {"carol", "dave"}):
        mine = [at for at, (tenant, _) in enumerate(traffic) if tenant.name in trust]
        with scripted(TENANTS) as service:
            alone = replies(service, [traffic[at] for at in mine])
        assert alone == [together[at] for at in mine]
        hits += sum(cached(reply) > 0 for reply in alone)
    assert hits > 20  # else nothing was at stake
    with scripted(TENANTS) as service:
        one = replies(service, [(TENANTS[0], body) for _, body in traffic])
    assert one != together  # as one tenant's, the same traffic hits more
