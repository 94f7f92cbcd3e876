"""What every route stands on, in one value."""

from __future__ import annotations

from dataclasses import dataclass, field

from ghostkv.config import ServerConfig
from ghostkv.server.access import Access
from ghostkv.server.desk import Desk
from ghostkv.server.gate import Gate
from ghostkv.server.keeping import Keeping, StoreKeeping
from ghostkv.server.peer import Peers
from ghostkv.server.response_store import ResponseStore
from ghostkv.session.store import Store
from ghostkv.session.table import SessionTable
from ghostkv.session.worker import Worker
from ghostkv.telemetry.metrics import Metrics
from ghostkv.telemetry.observe import Observer
from ghostkv.telemetry.request_log import RequestLog


@dataclass(frozen=True, slots=True)
class Serving:
    """A worker and what the server keeps beside it; their lives are the caller's business."""

    worker: Worker
    observers: tuple[Observer, ...] = ()
    access: Access = field(default_factory=Access)
    config: ServerConfig = field(default_factory=ServerConfig)
    gate: Gate = field(default_factory=Gate)
    responses: ResponseStore = field(default_factory=ResponseStore)
    store: Store | None = None  # of sessions; None: they end with the process
    peers: Peers = field(default_factory=Peers)
    metrics: Metrics = field(init=False)
    log: RequestLog = field(init=False)
    desk: Desk = field(init=False)

    def __post_init__(self) -> None:
        """Metrics and log belong to this worker and these keys, and see every answer and every request."""
        metrics = Metrics(self.worker, self.access.alias)
        metrics.gauge("ghostkv_waiting_answers", "Answers without a token", lambda: self.gate.waiting)
        metrics.gauge("ghostkv_waiting_tokens", "The most that those may cost", lambda: self.gate.waiting_tokens)
        keeping = Keeping() if self.store is None else StoreKeeping(self.store, self.worker)
        token_bytes = self.worker.tokenizer.token_bytes
        table = SessionTable(self.config.sessions, token_bytes=token_bytes, forgotten=keeping.forgotten)
        object.__setattr__(self, "desk", Desk(table, keeping))
        object.__setattr__(self, "metrics", metrics)
        object.__setattr__(self, "observers", (metrics.observer, *self.observers))
        object.__setattr__(self, "log", RequestLog(self.worker.name, self.access.alias))
