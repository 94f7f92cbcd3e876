"""`ghostkv serve --ray`: deploys, and stays where the cluster is its own."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from ghostkv.errors import ConfigError
from ghostkv.replicas.settings import Scale, Settings
from ghostkv.session.stores import is_address


def serve_on_ray(settings: Settings, scale: Scale, host: str, port: int) -> None:
    """Deploy replicas, or replace those that run by replicas of these settings.

    On a cluster that was there it returns once they serve; one that it had to start ends with it, at SIGTERM or SIGINT.
    Raises ConfigError.
    """
    if not is_address(settings.store):
        raise ConfigError(
            "--ray needs a store that replicas can share: --store postgresql://…; a file is one process's alone"
        )
    if not port:
        raise ConfigError("--ray needs a port of its own: every machine of the cluster listens on it")
    try:
        from ghostkv.replicas import cluster
    except ImportError as error:
        raise ConfigError(f"--ray needs an extra: pip install 'ghostkv[ray]' ({error})") from error
    own = cluster.start(host, port)
    asked_to_end = threading.Event()

    def stop(sig: int, frame: FrameType | None) -> None:
        asked_to_end.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)  # Ray's own would leave the replicas no time
    try:
        cluster.deploy(settings, scale)
        many = f"{scale.least}" if scale.least == scale.most else f"{scale.least} to {scale.most}"
        print(f"serving at http://{host}:{port}/v1 ({many} replicas on Ray, {settings.cores} cores each)", flush=True)
        if own:
            asked_to_end.wait()
    finally:
        if own:
            cluster.end()
