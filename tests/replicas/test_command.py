"""`serve --ray`: how many replicas there are to be, and what is refused before Ray is asked for anything."""

from __future__ import annotations

import sys

import pytest

from ghostkv.config import EngineConfig, ServerConfig
from ghostkv.errors import ConfigError
from ghostkv.replicas.command import serve_on_ray
from ghostkv.replicas.settings import Scale, Settings
from ghostkv.server.access import Access

DATABASE = "postgresql://host/db"


def settings(store: str = DATABASE) -> Settings:
    return Settings("smollm2", EngineConfig(threads=3), ServerConfig(), Access(), store, 15.0)


@pytest.mark.parametrize(
    ("text", "scale"), [("2", Scale(2, 2)), ("1:4", Scale(1, 4)), ("3:3", Scale(3, 3)), ("99999", Scale(99999, 99999))]
)
def test_a_number_or_a_range(text: str, scale: Scale) -> None:
    assert Scale.of(text) == scale


@pytest.mark.parametrize(
    "text", ["", "0", "0:2", "4:1", "-1", "1:2:3", "1:", ":", "two", "1.5", "100000", "1 ", "\u0662"]
)
def test_what_is_no_number_of_replicas(text: str) -> None:
    with pytest.raises(ConfigError, match="replica"):
        Scale.of(text)


def test_a_replica_takes_the_cores_of_its_engine_s_threads() -> None:
    assert settings().cores == 3


def test_the_store_s_address_may_hold_a_password() -> None:
    assert DATABASE not in repr(settings())


@pytest.mark.parametrize(
    ("store", "port", "said"),
    [("sessions.db", 8000, "store postgresql://"), (DATABASE, 0, "port"), (DATABASE, 8000, r"ghostkv\[ray\]")],
)
def test_refused_before_ray_is_there(monkeypatch: pytest.MonkeyPatch, store: str, port: int, said: str) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as where the extra is not installed
    with pytest.raises(ConfigError, match=said):
        serve_on_ray(settings(store), Scale(1, 1), "127.0.0.1", port)
