"""A server's metrics as a test reads them: through Prometheus's own strict parser."""

from __future__ import annotations

from collections.abc import Iterable

import httpx2
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def parsed(text: str) -> Iterable[Metric]:
    """Raises ValueError for what is not OpenMetrics."""
    families: Iterable[Metric] = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return families


class Scrape:
    """One reading. `scrape["name_total"]` adds up the samples of that name that have the given labels."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = {family.name: family for family in families}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    @classmethod
    def of(cls, http: httpx2.Client, **headers: str) -> Scrape:
        reply = http.get("/metrics", headers={"accept": OPENMETRICS, **headers})
        assert reply.status_code == 200
        assert reply.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return cls(parsed(reply.text))

    def __getitem__(self, name: str) -> float:
        return self.get(name)

    def get(self, name: str, **labels: str) -> float:
        """Raises where there is no such sample, so that a misspelt name is no zero."""
        found = [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        assert found, (name, labels)
        return sum(found)

    @property
    def labels(self) -> set[tuple[str, str, str]]:
        """(sample, label, value) of all samples."""
        return {(s.name, name, value) for s in self.samples for name, value in s.labels.items()}
