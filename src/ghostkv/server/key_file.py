"""Reads API keys from a TOML file, one table `[[keys]]` for each, and from the environment."""

from __future__ import annotations

import hashlib
import re
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ghostkv.errors import ConfigError
from ghostkv.server.access import Access, Key, Tenant
from ghostkv.server.rates import Meter, Rates

VARIABLES = {"GHOSTKV_API_KEY": False, "GHOSTKV_ADMIN_KEY": True}
"""Environment variables with keys, separated by commas or blanks, and whether those are admin keys."""

_KEY = r"^[!-~]+$"  # what a header can carry
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
_Name: TypeAlias = Annotated[str, Field(pattern=_NAME)]
_Least: TypeAlias = Annotated[int, Field(ge=1)]
_SHOWN_DIGITS = 8  # of a digest, as the name of a tenant that has no other


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    tenant: _Name  # several keys may stand for one
    key: Annotated[str, Field(pattern=_KEY)] | None = None  # itself, in clear
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None
    share: _Name | None = None  # tenants that name the same group share cached blocks
    admin: bool = False  # sees the sessions and numbers of all tenants
    concurrent: _Least | None = None
    requests_per_minute: _Least | None = None
    tokens_per_minute: _Least | None = None

    def made(self) -> Key:
        """Raises ValueError."""
        if self.key is not None and self.sha256 is None:
            digest = hashlib.sha256(self.key.encode()).digest()
        elif self.sha256 is not None and self.key is None:
            digest = bytes.fromhex(self.sha256)
        else:
            raise ValueError("needs either key or sha256")
        rates = Rates(self.concurrent, self.requests_per_minute, self.tokens_per_minute)
        return Key(digest, Tenant(self.tenant, self.share or "", self.admin), Meter(rates))


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    keys: Annotated[list[_Entry], Field(min_length=1)]
    alias_salt: Annotated[str, Field(min_length=1)] | None = None  # keeps aliases the same over a restart


def read_access(file: Path | None, environment: Mapping[str, str], origins: Sequence[str] = ()) -> Access:
    """The keys of both places; none is an open server. Raises ConfigError, which never shows a key."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
            raise ConfigError(
                f"{origin!r} is not an origin: write * or, as browsers do, https://host or https://host:8080"
            )
    keys = list(_from_environment(environment))
    salt = None
    if file is not None:
        content = _content(file)
        keys += _from_file(file, content)
        salt = content.alias_salt
    _check(keys)
    return Access(tuple(keys), tuple(origins), salt.encode() if salt is not None else secrets.token_bytes(16))


def made_key(tenant: str) -> tuple[str, str]:
    """A random key of 256 bits, and its entry for the file. Raises ConfigError for a name that no tenant can have."""
    if not re.fullmatch(_NAME, tenant):
        raise ConfigError(f"{tenant!r} cannot be a tenant's name: write up to 64 letters, digits or any of . _ @ -")
    key = f"gk-{secrets.token_urlsafe(32)}"
    return key, f'[[keys]]\ntenant = "{tenant}"\nsha256 = "{hashlib.sha256(key.encode()).hexdigest()}"'


def _from_environment(environment: Mapping[str, str]) -> Iterator[Key]:
    for variable, admin in VARIABLES.items():
        if variable not in environment:
            continue
        keys = re.findall(r"[^\s,]+", environment[variable])
        if not keys:  # somebody meant to have one: to serve without would let everyone in
            raise ConfigError(f"${variable} is set, but holds no key")
        for key in keys:
            if not re.fullmatch(_KEY, key):
                raise ConfigError(f"${variable}: a key may have printable ASCII characters only")
            digest = hashlib.sha256(key.encode()).digest()
            yield Key(digest, Tenant(f"key-{digest.hex()[:_SHOWN_DIGITS]}", admin=admin))


def _content(file: Path) -> _File:
    try:
        return _File.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the API keys: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{file}: {where}: {first['msg']}") from None  # the cause would show the key
    except ValueError as error:  # not UTF-8, not TOML
        raise ConfigError(f"{file} is not TOML: {error}") from None


def _from_file(file: Path, content: _File) -> Iterator[Key]:
    for number, entry in enumerate(content.keys):
        try:
            yield entry.made()
        except ValueError as error:
            raise ConfigError(f"{file}: keys.{number}: {error}") from None


def _check(keys: Iterable[Key]) -> None:
    """Each key stands for one tenant, and a tenant is in one share group."""
    digests: set[bytes] = set()
    groups: dict[str, str] = {}
    for key in keys:
        name, group = key.tenant.name, key.tenant.share_group
        if key.digest in digests:
            raise ConfigError(f"an API key of tenant {name!r} is there twice")
        digests.add(key.digest)
        if groups.setdefault(name, group) != group:
            raise ConfigError(f"tenant {name!r} has keys of different share groups")
