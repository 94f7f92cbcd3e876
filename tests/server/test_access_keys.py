"""Where keys come from: a file, the environment, `ghostkv keys new`; and that a wrong file starts no open server."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ghostkv.cli import app
from ghostkv.errors import ConfigError, RateLimited
from ghostkv.server.access import Access, Tenant
from ghostkv.server.key_file import made_key, read_access

SECRET = "correct-horse"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
FULL = f"""
alias_salt = "pepper"

[[keys]]
tenant = "alice"
sha256 = "{DIGEST.upper()}"
share = "team"
concurrent = 2
requests_per_minute = 3
tokens_per_minute = 4

[[keys]]
tenant = "alice"
key = "second"
share = "team"
admin = true
"""


def read(folder: Path, text: str, **environment: str) -> Access:
    file = folder / "keys.toml"
    file.write_text(text, encoding="utf-8")
    return read_access(file, environment)


def tenant(access: Access, key: str) -> Tenant | None:
    found = access.find(key.encode())
    return None if found is None else found.tenant


def test_a_file_with_everything(tmp_path: Path) -> None:
    access = read(tmp_path, FULL)
    assert tenant(access, SECRET) == Tenant("alice", "team")
    assert tenant(access, "second") == Tenant("alice", "team", admin=True)
    assert tenant(access, DIGEST) is None  # the digest itself opens nothing
    assert tenant(access, "") is None
    assert access.cors_origins == ("*",)
    assert read(tmp_path, FULL).alias("alice") == access.alias("alice")  # the salt is the file's
    limited, free = (access.find(key.encode()) for key in (SECRET, "second"))
    assert limited is not None and free is not None
    for _ in range(50):
        free.meter.enter(0.0)
    limited.meter.enter(0.0)
    limited.meter.enter(0.0)
    with pytest.raises(RateLimited, match="2 requests running"):
        limited.meter.enter(0.0)


def test_the_environment(tmp_path: Path) -> None:
    access = read_access(None, {"GHOSTKV_API_KEY": " one, two\nthree ,", "GHOSTKV_ADMIN_KEY": "four"})
    tenants = [tenant(access, key) for key in ("one", "two", "three", "four")]
    assert len({found.name for found in tenants if found}) == 4
    assert [found.admin for found in tenants if found] == [False, False, False, True]
    assert len(access.keys) == 4
    other_order = read_access(None, {"GHOSTKV_API_KEY": "three one two"})
    assert tenant(other_order, "one") == tenants[0]  # so that a tenant keeps what is its own
    both = read(tmp_path, FULL, GHOSTKV_API_KEY="one")
    assert tenant(both, "one") == tenants[0]
    assert tenant(both, "second") is not None
    assert read_access(None, {}).keys == ()
    for variable in ("GHOSTKV_API_KEY", "GHOSTKV_ADMIN_KEY"):
        for nothing in (
            "",
            " , ",
        ):  # a variable that was never filled in: better no server than an open one
            with pytest.raises(ConfigError, match="holds no key"):
                read_access(None, {variable: nothing})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "keys"),
        ("keys = []", "keys"),
        ("[[keys]]", "keys.0.tenant"),
        ('[[keys]]\ntenant = "a"', "keys.0: needs either"),
        (f'[[keys]]\ntenant = "a"\nkey = "{SECRET}"\nsha256 = "{DIGEST}"', "keys.0: needs either"),
        (f'[[keys]]\ntenant = "a"\nkey = "{SECRET} x"', "keys.0.key"),
        ('[[keys]]\ntenant = "a"\nkey = ""', "keys.0.key"),
        (f'[[keys]]\ntenant = "a"\nsha256 = "{DIGEST[:-1]}"', "keys.0.sha256"),
        (f'[[keys]]\ntenant = "a b"\nkey = "{SECRET}"', "keys.0.tenant"),
        (f'[[keys]]\ntenant = ""\nkey = "{SECRET}"', "keys.0.tenant"),
        (f'[[keys]]\ntenant = "a"\nkey = "{SECRET}"\nadmin = 1', "keys.0.admin"),
        (f'[[keys]]\ntenant = "a"\nkey = "{SECRET}"\nconcurrent = 0', "keys.0.concurrent"),
        (f'[[keys]]\ntenant = "a"\nkey = "{SECRET}"\nlimit = 3', "keys.0.limit"),
        (
            f'[[keys]]\ntenant = "a"\nkey = "{SECRET}"\n[[keys]]\ntenant = "b"\nsha256 = "{DIGEST}"',
            "'b' is there twice",
        ),
        ('[[keys]]\ntenant = "a"\nkey = "x"\n[[keys]]\ntenant = "a"\nkey = "y"\nshare = "s"', "different share groups"),
        (f'[[keys]\ntenant = "{SECRET}"', "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_shows_no_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as refused:
        read(tmp_path, text)
    assert SECRET not in refused.value.message
    assert refused.value.__cause__ is None


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        read_access(tmp_path / "nowhere.toml", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        read_access(tmp_path / "binary", {})
    with pytest.raises(ConfigError, match="GHOSTKV_API_KEY"):
        read_access(None, {"GHOSTKV_API_KEY": "clé"})


@pytest.mark.parametrize("origin", ["https://app.example/", "app.example", "https://a b", "", "https://", "**"])
def test_an_origin_that_no_browser_sends(origin: str) -> None:
    with pytest.raises(ConfigError, match="origin"):
        read_access(None, {}, [origin])


def test_declared_origins() -> None:
    for origins in (("*",), ("https://app.example", "http://localhost:3000"), ("app://obsidian.md",)):
        assert read_access(None, {}, origins).cors_origins == origins
    assert read_access(None, {}).cors_origins == ()


def test_a_new_key_opens_with_its_entry(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["keys", "new", "alice"])
    assert result.exit_code == 0
    key, entry = result.output.split("\n", 1)
    assert len(key) > 40
    assert key not in entry
    assert tenant(read(tmp_path, entry), key) == Tenant("alice")
    assert made_key("alice")[0] != key
    with pytest.raises(ConfigError):
        made_key('a"\nadmin = true')


def test_serve_stops_before_a_model_is_loaded(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.toml")
    result = CliRunner().invoke(app, ["serve", "--model", "/no/such/model", "--api-keys", missing, "--port", "0"])
    assert result.exit_code == 1
    assert "none.toml" in result.output
    result = CliRunner().invoke(app, ["serve", "--model", "/no/such/model", "--cors-origin", "x/", "--port", "0"])
    assert result.exit_code == 1
    assert "origin" in result.output
