"""The first meeting with upstreams: whose tokenizer, who is there, and what all of them can do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ghostkv.backends.upstream import FailedTry, Upstream
from ghostkv.backends.upstream_member import Member
from ghostkv.backends.upstream_probe import Findings, discover, own_files, shares
from ghostkv.backends.upstream_text import ModelText, read_text
from ghostkv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Offer:
    """What a backend over upstreams can offer, and how it was found."""

    text: ModelText
    members: tuple[Member, ...]
    offered: Findings
    """What all that were there can do."""
    model: str

    async def discovery(self, member: Member) -> Findings:
        """How an upstream that was away is asked. Raises FailedTry, and ConfigError if it lacks what is offered."""
        found = await discover(member.upstream, self.text, self.model)
        try:
            return self.offered.adapted(found)
        except ConfigError as error:
            raise ConfigError(f"the upstream {member.upstream.address}: {error.message}") from error


async def begin(servers: Sequence[Upstream], path: Path | None, model: str, announce: Callable[[str], None]) -> Offer:
    """Ask every server what it can do with `model`, tell `announce` what that costs. One that is away may join later.

    Raises ConfigError where all are away, or one is not fit, ModelError for files that cannot be used.
    """
    text = read_text(path or await _files(servers, model))
    asked = await asyncio.gather(*(discover(server, text, model) for server in servers), return_exceptions=True)
    members, found = tuple(map(Member, servers)), dict[str, Findings]()
    for member, answer in zip(members, asked, strict=True):
        if isinstance(answer, FailedTry):
            member.lost(answer.error.message)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[member.upstream.address] = answer
    if not found:
        raise ConfigError("; ".join(member.problem for member in members))
    offered = Findings.common(list(found.values()))
    for member in members:
        if (own := found.get(member.upstream.address)) is not None:
            member.join(offered.adapted(own))
        else:
            announce(f"upstream: away, and used when it is there: {member.problem}")
    for said in shares(found):
        announce(f"upstream: {said}")
    return Offer(text, members, offered, model)


async def _files(servers: Sequence[Upstream], model: str) -> Path:
    """Of the first that says where its own are. Raises ConfigError where none does."""
    problems = []
    for server in servers:
        try:
            return await own_files(server, model)
        except FailedTry as failed:
            problems.append(failed.error.message)
        except ConfigError as error:
            problems.append(error.message)
    raise ConfigError("; ".join(problems))
