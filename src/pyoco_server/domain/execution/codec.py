"""Commits and records as JSON. What a newer version wrote is kept, not understood."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from pyoco_server.domain.execution.events import PAYLOADS, TYPE_OF, Actor, Commit, Event, Payload, Unknown
from pyoco_server.domain.execution.records import ExecutionRecord, ExecutionSummary, LoggedCommit
from pyoco_server.domain.wire import NOT_READABLE, Unreadable, decoding, encode

__all__ = ["decode_commit", "decode_record", "encode_commit", "encode_record", "event_view"]


class _StoredEvent(Struct, frozen=True):
    type: str
    payload: Raw


class _StoredCommit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    execution_id: str
    command_id: str
    first_sequence: int
    at: float
    actor: Actor
    events: list[_StoredEvent]
    summary: ExecutionSummary
    schema_version: int = 1
    correlation_id: str | None = None
    request_digest: str | None = None


_decoder = msgspec.json.Decoder(_StoredCommit)


def encode_commit(logged: LoggedCommit) -> bytes:
    commit = logged.commit
    return encode(
        _StoredCommit(
            execution_id=commit.execution_id,
            command_id=commit.command_id,
            first_sequence=commit.first_sequence,
            at=commit.at,
            actor=commit.actor,
            events=[
                _StoredEvent(type_name(payload), Raw(msgspec.json.encode(payload_view(payload))))
                for payload in commit.payloads
            ],
            summary=logged.summary,
            schema_version=commit.schema_version,
            correlation_id=commit.correlation_id,
            request_digest=commit.request_digest,
        )
    )


def decode_commit(data: bytes) -> LoggedCommit:
    try:
        stored = _decoder.decode(data)
        payloads = tuple(_payload(event, stored.schema_version) for event in stored.events)
    except NOT_READABLE as error:
        raise Unreadable(f"commit of an execution: {error}") from error
    commit = Commit(
        execution_id=stored.execution_id,
        command_id=stored.command_id,
        first_sequence=stored.first_sequence,
        at=stored.at,
        actor=stored.actor,
        payloads=payloads,
        correlation_id=stored.correlation_id,
        request_digest=stored.request_digest,
        schema_version=stored.schema_version,
    )
    return LoggedCommit(commit, stored.summary)


def _payload(event: _StoredEvent, schema_version: int) -> Payload:
    known = PAYLOADS.get(event.type)
    if known is None or schema_version != 1:
        return Unknown(type=event.type, fields=msgspec.json.decode(event.payload))
    return msgspec.json.decode(event.payload, type=known)


def type_name(payload: Payload) -> str:
    return payload.type if isinstance(payload, Unknown) else TYPE_OF[type(payload)]


def payload_view(payload: Payload) -> Any:
    return payload.fields if isinstance(payload, Unknown) else payload


def event_view(event: Event, execution_id: str) -> dict[str, Any]:
    """An event as clients see it, of the execution that they call so."""
    return {
        "event_id": str(event.event_id),
        "execution_id": execution_id,
        "sequence": event.sequence,
        "type": event.type,
        "occurred_at": event.occurred_at,
        "actor": event.actor,
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id,
        "schema_version": event.schema_version,
        "payload": payload_view(event.payload),
    }


encode_record = encode
decode_record = decoding(ExecutionRecord, "state of an execution")
