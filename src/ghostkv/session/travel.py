"""Capsules between servers: sealed with a shared secret, and looked at closely before anything of them is used.

A checksum is against accidents; the HMAC says that whoever made the bytes knows the secret. It hides nothing: what is
said in a session can be read on the way, so servers talk over a network of their own, or TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass

from ghostkv.errors import GhostError, RecordRefused
from ghostkv.protocol.log import Log
from ghostkv.request import Token
from ghostkv.session.capsule import Capsule
from ghostkv.session.manifest import Manifest
from ghostkv.session.record import SessionRecord, TurnRecord
from ghostkv.session.shapes import check_shape
from ghostkv.session.turn import Event, Output, Turn
from ghostkv.session.worker import Worker

_MAGIC = b"GKX\x01"
_DIGEST = hashlib.sha256().digest_size
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[A-Za-z0-9._~-]{1,256}")


def sealed(body: bytes, secret: bytes, purpose: str) -> bytes:
    """`body` with an HMAC-SHA256 over it and what it is for."""
    return _MAGIC + _mac(body, secret, purpose) + body


def unsealed(data: bytes, secret: bytes, purpose: str) -> bytes:
    """What was sealed for `purpose`. Raises RecordRefused for anything else."""
    head = len(_MAGIC) + _DIGEST
    given, body = data[len(_MAGIC) : head], data[head:]
    if not data.startswith(_MAGIC) or not hmac.compare_digest(given, _mac(body, secret, purpose)):
        raise RecordRefused("it is not sealed with this server's secret")
    return body


def is_sealed(data: bytes) -> bool:
    """Whether they are bytes that were sealed, with whatever secret."""
    return data.startswith(_MAGIC)


def arrived(data: bytes, here: Manifest, worker: Worker) -> Capsule:
    """The capsule in `data`, unsealed, with every value of the kind and in the range that it must have.

    Raises RecordRefused, naming what is not.
    """
    capsule = Capsule.decode(data, here)
    try:
        check_shape(capsule.record, SessionRecord, "record")
        _check_record(capsule.record, worker)
        if capsule.answering is not None:
            check_shape(capsule.answering.turn, Turn, "turn")
            _check_ids(capsule.answering.prompt, worker.tokenizer.vocab_size, "prompt")
            worker.checked(capsule.answering.turn)
        if capsule.carried is not None:
            _check_carried(capsule, worker)
    except RecordRefused:
        raise
    except GhostError as error:
        raise RecordRefused(f"out of range: {error.message}") from error
    return capsule


def _check_record(record: SessionRecord, worker: Worker) -> None:
    if not _ID.fullmatch(record.id):
        raise RecordRefused("the session's id is none")
    digests = [text for call in record.calls for text in (call.arguments, call.result or call.arguments)]
    if not all(map(_SHA256.fullmatch, digests)):
        raise RecordRefused("what a tool call says of its arguments or result is no digest")
    for turn in record.turns:
        check_shape(turn, TurnRecord, "answer")
        if turn.first < 0 or not 0 <= turn.max_tokens <= worker.config.max_session_tokens:
            raise RecordRefused("an answer is longer than an answer may be here")
        if turn.tokens != sum(len(event.tokens) for event in turn.events if isinstance(event, Output)):
            raise RecordRefused("an answer does not have as many tokens as it says")
        for event in turn.events:
            _check_event(event, worker.tokenizer.vocab_size)


def _check_event(event: Event, vocabulary: int) -> None:
    check_shape(event, type(event), "event")
    if isinstance(event, Output):
        for token in (*event.tokens, *event.prompt):
            _check_token(token, vocabulary)


def _check_token(token: Token, vocabulary: int) -> None:
    scores = [token.logprob] if token.logprob is not None else []
    _check_ids((token.id, *(token_id for token_id, _ in token.top)), vocabulary, "token")
    if any(math.isnan(value) or value > 0 for value in (*scores, *(value for _, value in token.top))):
        raise RecordRefused("a log-probability is none")


def _check_carried(capsule: Capsule, worker: Worker) -> None:
    carried = capsule.carried
    if carried is None:
        return
    for field in fields(carried):
        if is_dataclass(value := getattr(carried, field.name)) and field.name != "memory":
            check_shape(value, type(value), field.name)
    state, most = carried.state, worker.tokenizer.vocab_size
    _check_ids(state.client_ids, most, "client_ids")
    _check_ids((token_id for token_id, _ in state.counts), most, "counts")
    _check_ids(carried.memory.archive.ids, most, "archive")
    if not 0 <= state.emitted <= worker.config.max_session_tokens or any(count < 1 for _, count in state.counts):
        raise RecordRefused("the state of the generation is out of range")


def _check_ids(ids: Iterable[int] | Log[int], vocabulary: int, name: str) -> None:
    if not all(type(token_id) is int and 0 <= token_id < vocabulary for token_id in ids):
        raise RecordRefused(f"{name} has an id outside the vocabulary of {vocabulary}")


def _mac(body: bytes, secret: bytes, purpose: str) -> bytes:
    return hmac.new(secret, b"%d:%s:" % (len(purpose), purpose.encode()) + body, hashlib.sha256).digest()
