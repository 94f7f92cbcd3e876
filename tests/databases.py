"""A PostgreSQL server of the tests' own: a cluster in a temporary folder, behind a socket there, gone with them."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

_ROOT = Path("/usr/lib/postgresql")  # where Debian has them, which are not on the path


def programs() -> Path | None:
    """The folder of the server's programs, the newest if there are several."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).parent
    there = sorted(_ROOT.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return there[-1].parent if there else None


class Cluster:
    """A server that runs, and databases on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql:///{database}?host={self._folder}&user=ghostkv"

    def database(self) -> str:
        """The address of a new one."""
        name = f"d{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """One, or the test is skipped: but not in CI, which has installed it."""
    found = programs()
    if found is None:
        if os.environ.get("CI"):
            raise RuntimeError("CI installs PostgreSQL, but its programs are not here")
        pytest.skip("PostgreSQL's programs are not installed")
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        folder = Path(name)
        own = _other_user(folder)
        data = folder / "data"
        options = ["-U", "ghostkv", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        subprocess.run(
            [str(found / "initdb"), "-D", str(data), *options], check=True, capture_output=True, cwd=folder, **own
        )
        settings = {"listen_addresses": "", "unix_socket_directories": name, "fsync": "off", "max_connections": "40"}
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [found / "postgres", "-D", data, *options], stdout=log, stderr=log, cwd=folder, **own
            )
        try:
            made = Cluster(folder)
            _wait(made, server, folder / "log")
            yield made
        finally:
            server.send_signal(signal.SIGINT)  # it does not wait for connections
            server.wait(20)


def _other_user(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses root: then it is the user `nobody`, who gets the folder."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}


def _wait(made: Cluster, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        try:
            psycopg.connect(made.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            if server.poll() is not None:
                raise RuntimeError(log.read_text()) from None
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(log.read_text())
