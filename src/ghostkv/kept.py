"""The commands `ghostkv sessions ...`: what a store has, shown, taken out and put in.

No server may have a file open meanwhile. A database may be looked into at any time; a session that a server is
answering in is not touched.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ghostkv.errors import ConfigError, GhostError, RecordRefused, SessionExists, SessionNotFound
from ghostkv.options import DEFAULTS, Budget, Dtype, KVDtype, Model

if TYPE_CHECKING:
    from ghostkv.session.capsule import Capsule
    from ghostkv.session.manifest import Manifest
    from ghostkv.session.store import Store, Stored
    from ghostkv.session.worker import Worker

app = typer.Typer(no_args_is_help=True, help="Look into a store of sessions; into a file, while no server has it open.")

Place = Annotated[str, typer.Argument(metavar="STORE", help="The store's file, or postgresql://….")]
Session = Annotated[str, typer.Argument(help="The session's id.")]
Owner = Annotated[str | None, typer.Option("--tenant", help="Whose, where several tenants have one of this id.")]
File = Annotated[Path, typer.Argument(help="The capsule.")]
SecretFile = Annotated[
    Path | None,
    typer.Option("--capsule-secret-file", help="File of the secret that seals it, as for capsules between servers."),
]
_MOST = "1024GiB"  # whatever the server's limit is
_PURPOSE = "export"


@app.command("list")
def list_sessions(store: Place) -> None:
    """The sessions, the one that was written last at the end; as lines of JSON."""
    with _opened(store) as opened:
        for stored in opened.load(None):
            typer.echo(json.dumps(_line(stored), ensure_ascii=False))


@app.command()
def show(store: Place, session: Session, tenant: Owner = None) -> None:
    """All that is known of one, but for the text of its messages; as JSON."""
    from ghostkv.server.session_view import whole_session
    from ghostkv.session.fork import boundaries

    with _opened(store) as opened:
        capsule = _usable(_one(opened, session, tenant))
        places = [asdict(place) for place in boundaries(capsule)]
        shown = whole_session(capsule.record) | {"boundaries": places, "manifest": dict(capsule.manifest.parts)}
        typer.echo(json.dumps(shown, indent=1, ensure_ascii=False))


@app.command("export")
def export_session(
    store: Place,
    session: Session,
    file: Annotated[Path, typer.Argument()],
    tenant: Owner = None,
    capsule_secret_file: SecretFile = None,
) -> None:
    """Write one to a file, whole: as a capsule, which `import` takes. It has all that was said: keep it like that."""
    from ghostkv.server.secret import read_secret
    from ghostkv.session.travel import sealed

    secret = read_secret(capsule_secret_file)
    with _opened(store) as opened:
        data = _usable(_one(opened, session, tenant)).encode()
    data = sealed(data, secret, _PURPOSE) if secret else data
    file.touch(mode=0o600)
    file.write_bytes(data)
    typer.echo(f"{len(data)} bytes")


@app.command("import")
def import_session(
    store: Place,
    file: File,
    name: Annotated[str, typer.Option(help="An id in place of its own.")] = "",
    capsule_secret_file: SecretFile = None,
    model: Model = "smollm2",
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    kv_budget: Budget = "512MiB",
) -> None:
    """Put a capsule into a store, if a server of this model could go on from it; says what is wrong or differs."""
    from dataclasses import replace

    from ghostkv.server.secret import read_secret
    from ghostkv.session.travel import arrived

    data = _unsealed(file, read_secret(capsule_secret_file))
    with _worker(model, dtype, kv_dtype, kv_budget) as worker:
        capsule = arrived(data, worker.named, worker)
    capsule = replace(capsule, record=replace(capsule.record, id=name or capsule.record.id))
    key = (capsule.record.tenant, capsule.record.id)
    with _opened(store, new=True) as opened:
        if any(stored.key == key for stored in opened.load(None)):
            raise SessionExists(f"there is a session {key[1]!r} already: give it another --name")
        opened.keep(key, capsule).result()
    typer.echo(key[1])


@app.command()
def delete(store: Place, session: Session, tenant: Owner = None) -> None:
    """Erase one, usable or not."""
    with _opened(store) as opened:
        opened.forget(_one(opened, session, tenant).key).result()


@app.command()
def fork(
    store: Place,
    session: Session,
    at: Annotated[int | None, typer.Option(min=0, help="Index of a boundary, see show; default: the last.")] = None,
    name: Annotated[str, typer.Option(help="The new session's id.")] = "",
    tenant: Owner = None,
    model: Model = "smollm2",
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    kv_budget: Budget = "512MiB",
) -> None:
    """Make another session that goes on from a boundary of one; at an earlier one that is a rollback."""
    from ghostkv.session.fork import Names, forked

    names = Names(name or f"sess_{secrets.token_hex(12)}", f"fork-{secrets.token_hex(12)}", int(time.time()))
    with _opened(store) as opened, _worker(model, dtype, kv_dtype, kv_budget) as worker:
        found = _one(opened, session, tenant, worker.named)
        key = (found.key[0], names.session)
        if any(stored.key == key for stored in opened.load(None)):
            raise SessionExists(f"there is a session {key[1]!r} already: give another --name")
        opened.keep(key, forked(_usable(found), worker, at, names)).result()
    typer.echo(names.session)


@app.command()
def replay(
    store: Place,
    session: Session,
    tenant: Owner = None,
    model: Model = "smollm2",
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    kv_budget: Budget = "512MiB",
) -> None:
    """Compute a session's last answer again from its record; says that it is equal, or where it first differs."""
    from ghostkv.server.replay import recorded_grammar
    from ghostkv.session.replaying import Replayed, replayed

    with _opened(store) as opened, _worker(model, dtype, kv_dtype, kv_budget) as worker:
        capsule = _usable(_one(opened, session, tenant, worker.named))

        async def again() -> Replayed:
            grammar = None
            if capsule.answering is not None and capsule.answering.grammar:
                grammar = await recorded_grammar(worker, capsule.record.turns[-1], capsule.record.tenant)
            return await replayed(capsule, worker, grammar, f"replay-{secrets.token_hex(8)}")

        found = asyncio.run(again())
    if found.difference:
        typer.echo(f"differs after {found.tokens} equal tokens: {found.difference}")
        raise typer.Exit(1)
    typer.echo(f"equal: {found.tokens} tokens and {found.boundaries} boundaries, log-probabilities as far as recorded")


@contextmanager
def _worker(model: str, dtype: str, kv_dtype: str, kv_budget: str) -> Iterator[Worker]:
    from ghostkv.launch import engine_config, open_worker
    from ghostkv.terminal import Progress

    config = engine_config(dtype=dtype, kv_dtype=kv_dtype, kv_budget=kv_budget)
    with Progress() as progress:
        worker = open_worker(model, config, announce=progress)
    try:
        yield worker
    finally:
        worker.close()


def _unsealed(file: Path, secret: bytes) -> bytes:
    """The capsule in a file. Raises RecordRefused for one that is sealed otherwise than `secret` says."""
    from ghostkv.session.travel import is_sealed, unsealed

    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    if secret:
        return unsealed(data, secret, _PURPOSE)
    if is_sealed(data):
        raise RecordRefused(f"{file} is sealed with a secret: add --capsule-secret-file")
    return data


@contextmanager
def _opened(place: str, *, new: bool = False) -> Iterator[Store]:
    from ghostkv.session.stores import is_address, open_store

    if not new and not is_address(place) and not Path(place).is_file():
        raise ConfigError(f"there is no store {place}")
    store = open_store(place, most=None if is_address(place) else _MOST)
    try:
        yield store
    finally:
        store.close()


def _one(store: Store, session: str, tenant: str | None, here: Manifest | None = None) -> Stored:
    """Only looked at, it stays whose it is. Raises RecordRefused where it is not of the manifest `here`."""
    from ghostkv.session.capsule import Capsule, check_manifest

    found = [each for each in store.load(None) if each.key[1] == session and tenant in (None, each.key[0])]
    if len(found) > 1:
        owners = ", ".join(repr(each.key[0]) for each in found)
        raise ConfigError(f"several tenants have a session {session!r}: add --tenant, one of {owners}")
    if not found:
        raise SessionNotFound(f"there is no session {session!r}")
    if isinstance(capsule := found[0].found, Capsule):
        check_manifest(capsule.manifest, here)
    return found[0]


def _usable(stored: Stored) -> Capsule:
    if isinstance(stored.found, GhostError):
        raise stored.found
    return stored.found


def _line(stored: Stored) -> dict[str, object]:
    tenant, session = stored.key
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - stored.age_s))
    head: dict[str, object] = {"id": session, "tenant": tenant, "written": written}
    if isinstance(stored.found, GhostError):
        return head | {"refused": stored.found.message}
    record = stored.found.record
    status = "unfinished" if record.running else "idle"
    manifest = stored.found.manifest.digest
    return head | {"status": status, "answers": len(record.turns), "output_tokens": record.tokens, "manifest": manifest}
