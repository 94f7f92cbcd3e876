"""Frozen values as canonical JSON, and back: what a capsule's parts are written in.

Only the classes that are listed here can be written or read, each as the list of its fields, all of them: a value with
a field less or more is refused. It knows nothing of checksums or of what the values mean.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from ghostkv.errors import InvariantViolation, RecordRefused
from ghostkv.protocol.blocks import Place
from ghostkv.protocol.extract import Context
from ghostkv.protocol.facts import Position, Sentence
from ghostkv.protocol.lines import Lines, Opening
from ghostkv.protocol.log import Log
from ghostkv.protocol.payload import Cursor
from ghostkv.protocol.plan import Node, Plan
from ghostkv.protocol.reader import Reader
from ghostkv.protocol.rules import EndOfSequence, FixedBoundary, StopStrings
from ghostkv.protocol.segmenter import SegmentBoundary
from ghostkv.protocol.state import Block, Line
from ghostkv.protocol.structure import Structure
from ghostkv.protocol.transition import OpenText
from ghostkv.request import (
    BoundaryMark,
    Decision,
    FinishReason,
    GenerationState,
    Message,
    PromptScores,
    Sampling,
    SegmentUsage,
    Steering,
    Token,
    Tool,
    ToolCall,
)
from ghostkv.session.calls import CallRecord
from ghostkv.session.record import SessionRecord, Status, TurnRecord
from ghostkv.session.turn import Finished, LongPrompt, NodeRecord, Output, Phases, PlanRecord, SegmentRecord, Turn

_CLASSES: Mapping[str, type[Any]] = {
    known.__name__: known
    for known in (
        *(
            Message,
            Tool,
            ToolCall,
            Sampling,
            GenerationState,
            Steering,
            PromptScores,
            SegmentUsage,
            Token,
            BoundaryMark,
        ),
        *(Position, Sentence, Cursor, Place, Context, Reader, OpenText, Line, Block, Node, Plan),
        *(EndOfSequence, StopStrings, FixedBoundary, SegmentBoundary, Structure, Lines, Opening),
        *(Turn, Output, Phases, SegmentRecord, NodeRecord, PlanRecord, Finished, CallRecord, TurnRecord, SessionRecord),
    )
}
_NAMES: Mapping[str, type[Enum]] = {known.__name__: known for known in (FinishReason, Decision, LongPrompt, Status)}
_FIELDS = {name: tuple(field.name for field in fields(known) if field.init) for name, known in _CLASSES.items()}
_BYTES, _SET, _LOG = "bytes", "set", "log"
_dump = json.JSONEncoder(separators=(",", ":")).encode


def encode(value: object) -> bytes:
    """Canonical bytes: equal values have equal ones. Raises InvariantViolation for what is not listed."""
    return _dump(_plain(value)).encode("ascii")


def decode(data: bytes) -> Any:
    """What `encode` was given, lists as tuples. Raises RecordRefused for anything else."""
    try:
        return _value(json.loads(data))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordRefused(f"a damaged record: {error}") from error


def _plain(value: Any) -> object:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, frozenset):
        return {_SET: sorted(value)}
    if isinstance(value, Log):
        return {_LOG: [_plain(item) for item in value]}
    name = type(value).__name__
    if _NAMES.get(name) is type(value):
        return {name: value.value}
    if _CLASSES.get(name) is type(value):
        return {name: [_plain(getattr(value, field)) for field in _FIELDS[name]]}
    raise InvariantViolation(f"a record cannot hold {type(value).__module__}.{name}")


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(map(_value, plain))
    if not isinstance(plain, dict):
        return plain
    [(name, content)] = plain.items()
    if name in _CLASSES:
        return _CLASSES[name](**dict(zip(_FIELDS[name], map(_value, content), strict=True)))
    if name in _NAMES:
        return _NAMES[name](content)
    if name == _BYTES:
        return base64.b64decode(content, validate=True)
    if name == _SET:
        return frozenset(content)
    if name == _LOG:
        return Log(map(_value, content))
    raise ValueError(f"{name[:40]!r} is no part of a record")
