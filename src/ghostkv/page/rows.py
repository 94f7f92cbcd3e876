"""The live page's tables as rows of plain values: an answer, its segments, the facts of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ghostkv.backends.base import UpstreamState
from ghostkv.page.charts import colour
from ghostkv.page.live import Watched
from ghostkv.protocol.ledger import Ledger, Standing
from ghostkv.session.turn import SegmentRecord

Row = dict[str, Any]

_CHAIN = 24
"""Segments that a row draws."""


def columns(*names: str, left: tuple[str, ...] = ()) -> list[Row]:
    """Columns whose field is their name; numbers stand right."""
    return [
        {"name": name, "label": name, "field": name, "align": "left" if name in left else "right"} for name in names
    ]


ANSWER_COLUMNS = columns(
    "answer", "state", "residency", "segments", "prompt", "output", "resident", "carried", "recalled", "rehydrated",
    "payload", "exact", left=("answer", "state", "residency", "segments", "exact"),
)  # fmt: skip
UPSTREAM_COLUMNS = columns("upstream", "state", "segments", "failovers", left=("upstream", "state"))
SEGMENT_COLUMNS = columns(
    "#", "node", "prompt", "cached", "tail", "state", "recalled", "rehydrated", "output", "boundary", "decision",
    "live KV", "density", "payload", "worker", left=("boundary", "decision", "worker"),
)  # fmt: skip

FACT_COLUMNS = columns(
    "#", "kind", "of", "what", "value", "standing", "said", "from",
    left=("kind", "of", "what", "value", "standing", "from"),
)  # fmt: skip


def plain(text: str) -> str:
    """Text that can be sent to a browser: half a surrogate pair, which JSON lets a client send, has no UTF-8."""
    return text.encode("utf-8", errors="replace").decode("utf-8")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def answer_row(answer: Watched, now: float) -> Row:
    """One answer. Its chain is what CSS needs to draw it: widths and classes."""
    end = answer.finished
    return {
        "id": plain(answer.id),
        "answer": f"#{answer.number}",
        "question": plain(answer.question) or "(raw prompt)",
        "colour": colour(answer),
        "state": answer.state.value,
        "age": f"{(answer.ended or now) - answer.began:.0f} s",
        "residency": answer.residency,
        "segments": answer.flushed + (answer.generated > 0),
        "flushed": answer.flushed,
        "chain": chain(answer),
        "prompt": answer.prompt,
        "output": answer.generated,
        "resident": answer.resident,
        "fill": round(answer.resident / answer.peak, 3) if answer.peak else 0,
        "carried": answer.carried,
        "recalled": answer.recalled,
        "rehydrated": answer.rehydrated,
        "payload": size(answer.payload_bytes),
        "exact": "…" if end is None else "exact" if end.exact else "not exact",
    }


def upstream_row(upstream: UpstreamState, now: float) -> Row:
    """One upstream; `now` is Unix time."""
    return {
        "upstream": plain(upstream.address),
        "state": "running" if upstream.healthy else "failed",
        "age": f"{max(0.0, now - upstream.since):.0f} s",
        "segments": upstream.running,
        "failovers": upstream.failovers,
    }


def chain(answer: Watched) -> str:
    """`blocks` of its segments, and `tokens:open` for the one that runs."""
    running = f" {answer.resident}:open" if answer.open and answer.resident else ""
    return blocks(list(answer.segments)) + running


def blocks(segments: Sequence[SegmentRecord]) -> str:
    """Segments as `resident tokens:decision`, oldest first; the latest of them. CSS draws them as wide as they were."""
    return " ".join(f"{one.usage.resident_tokens}:{decision(one)}" for one in segments[-_CHAIN:])


def decision(record: SegmentRecord) -> str:
    """What was decided at its end."""
    return "end" if record.boundary is None else record.boundary.decision.value


def segment_row(record: SegmentRecord) -> Row:
    """One segment."""
    usage = record.usage
    return {
        "#": record.index,
        "node": record.node,
        "prompt": usage.prompt_tokens,
        "cached": usage.cached_tokens,
        "tail": record.tail,
        "state": record.state,
        "recalled": record.recalled,
        "rehydrated": record.rehydrated,
        "output": usage.generated_tokens,
        "boundary": "" if record.boundary is None else record.boundary.kind,
        "decision": decision(record),
        "live KV": size(record.live_kv_bytes),
        "density": f"{record.density:.2f}",
        "payload": size(record.payload_bytes),
        "worker": f"{record.worker} ({record.reason})" if record.worker else "",
    }


def fact_rows(ledger: Ledger, most: int) -> list[Row]:
    """Of the values that were stated last."""
    standings = list(enumerate(ledger.standings()))[-most:]
    return [_fact_row(number, standing) for number, standing in reversed(standings)]


def _fact_row(number: int, standing: Standing) -> Row:
    fact, by = standing.fact, standing.superseded_by
    holds = "holds" if by is None else f"superseded: {by.value}"
    return {
        "#": number,
        "kind": fact.kind.value,
        "of": plain(fact.subject),
        "what": plain(fact.attribute),
        "value": plain(fact.value),
        "standing": plain("only supposed" if fact.hypothetical else holds),
        "said": standing.mentions,
        "from": f"{fact.sentence.role}, segment {fact.sentence.segment}",
    }
