"""API keys for tests: a server's `Access` from a few words, and clients that use them."""

from __future__ import annotations

import hashlib
from typing import Any

import openai

from ghostkv.server.access import Access, Key, Tenant
from ghostkv.server.rates import Meter, Rates
from services import Service


def key_of(tenant: str) -> str:
    return f"key-of-{tenant}"


def access(*tenants: str | Tenant, origins: tuple[str, ...] = (), rates: Rates | None = None) -> Access:
    """One key for each tenant, all with the same limits."""
    keys = []
    for tenant in tenants:
        made = tenant if isinstance(tenant, Tenant) else Tenant(tenant)
        digest = hashlib.sha256(key_of(made.name).encode()).digest()
        keys.append(Key(digest, made, Meter(rates)))
    return Access(tuple(keys), origins)


def bearer(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key_of(tenant)}"}


def client(service: Service, key: str, **options: Any) -> Any:
    """openai's; its overloads do not take a dictionary of fields, hence Any."""
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key=key, max_retries=0, timeout=20, **options)
