"""JSON codec of commits and records, which keeps events of newer versions; splitting of large commits."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from pyoco_server.domain.codec import NOT_READABLE, Unreadable, decoding, encode, light
from pyoco_server.domain.executions import events as e
from pyoco_server.domain.executions.events import PAYLOADS, TYPE_OF, Actor, Commit, Payload, Unknown
from pyoco_server.domain.executions.model import Execution, Message, NodeState
from pyoco_server.domain.executions.records import ExecutionRecord, ExecutionSummary, LoggedCommit

__all__ = ["decode_commit", "decode_record", "encode_commit", "encode_record", "payload_view"]


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
_WITH_VALUES = 2
"""Schema version of a commit with references to stored values. To older versions it has no effect: they would
take a reference for the value."""


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
            schema_version=_schema_version_of(commit),
            correlation_id=commit.correlation_id,
            request_digest=commit.request_digest,
        )
    )


def decode_commit(data: bytes) -> LoggedCommit:
    try:
        stored = _decoder.decode(data)
        payloads = tuple(_payload(event, stored.schema_version) for event in stored.events)
    except NOT_READABLE as error:
        raise Unreadable(f"execution commit: {error}") from error
    commit = Commit(
        execution_id=stored.execution_id,
        command_id=stored.command_id,
        first_sequence=stored.first_sequence,
        at=stored.at,
        actor=stored.actor,
        payloads=payloads,
        correlation_id=stored.correlation_id,
        request_digest=stored.request_digest,
        schema_version=1 if stored.schema_version == _WITH_VALUES else stored.schema_version,
    )
    return LoggedCommit(commit, stored.summary)


def _schema_version_of(commit: Commit) -> int:
    has_values = any(True for payload in commit.payloads for _ in e.values_in(payload))
    return _WITH_VALUES if has_values else commit.schema_version


def _payload(event: _StoredEvent, schema_version: int) -> Payload:
    known = PAYLOADS.get(event.type)
    if known is None or schema_version not in (1, _WITH_VALUES):
        return Unknown(type=event.type, fields=msgspec.json.decode(event.payload))
    return msgspec.json.decode(event.payload, type=known)


def type_name(payload: Payload) -> str:
    return payload.type if isinstance(payload, Unknown) else TYPE_OF[type(payload)]


def payload_view(payload: Payload) -> Any:
    return payload.fields if isinstance(payload, Unknown) else payload


encode_record = encode

_WHOLE_BYTES = 32 * 1024
_decode_whole = decoding(ExecutionRecord, "execution state")
_decode_parts = decoding(
    light(
        ExecutionRecord,
        state=light(Execution, input=Raw, result=Raw, nodes=dict[str, Raw], messages=list[Raw]),
    ),
    "execution state",
)
_decode_node = decoding(NodeState, "execution state")
_decode_message = decoding(Message, "execution state")
_decode_value = decoding(Any, "execution state")


def decode_record(data: bytes) -> ExecutionRecord:
    """A large one part by part: to decode one part, a thread keeps the interpreter for itself."""
    if len(data) <= _WHOLE_BYTES:
        return _decode_whole(data)
    record = msgspec.structs.asdict(_decode_parts(data))
    state = msgspec.structs.asdict(record["state"])
    nodes = {node_id: _decode_node(node) for node_id, node in state["nodes"].items()}
    messages = tuple(map(_decode_message, state["messages"]))
    values = {name: None if (raw := state[name]) is None else _decode_value(raw) for name in _VALUES}
    return ExecutionRecord(
        **{**record, "state": Execution(**{**state, **values, "nodes": nodes, "messages": messages})}
    )


_VALUES = ("input", "result")


# Splitting of commits that exceed the message size. A partial commit is a valid log, because the next
# evaluation continues from there; only consecutive events of one node belong together. An event that is too
# large by itself becomes a failure.


def smaller(state: Execution, payloads: Sequence[e.Payload]) -> tuple[e.Payload, ...] | None:
    """About half of the events, or a failure in place of an indivisible event. None: not possible."""
    groups = _groups(payloads)
    if len(groups) > 1:
        half = groups[: len(groups) // 2]
        return tuple(payload for group in half for payload in group)
    large = next((one for one in payloads if isinstance(one, e.MapItemsEnded)), None)
    if large is not None and len(payloads) > 1:
        return tuple(payloads[: max(1, payloads.index(large))])
    return _failed(state, payloads[-1]) if payloads else None


def _groups(payloads: Sequence[e.Payload]) -> list[list[e.Payload]]:
    groups: list[list[e.Payload]] = []
    for payload in payloads:
        node_id = getattr(payload, "node_id", None)
        if groups and node_id is not None and getattr(groups[-1][-1], "node_id", None) == node_id:
            groups[-1].append(payload)
        else:
            groups.append([payload])
    return groups


def _failed(state: Execution, payload: e.Payload) -> tuple[e.Payload, ...] | None:
    match payload:
        case e.MapItemsEnded(ended=(item,)):
            error = e.Failure(_too_large("the output", item.output), "OUTPUT_TOO_LARGE")
            return (
                replace(payload, ended=(e.ItemEnd(index=item.index, attempt=item.attempt, error=error),)),
            )
        case e.MapItemsEnded(ended=ended):
            return (replace(payload, ended=ended[: len(ended) // 2]),)
        case e.NodeSucceeded(node_id=node_id):
            error = e.Failure(_too_large("the output", payload.output), "OUTPUT_TOO_LARGE")
            attempt = state.nodes[node_id].attempt
            return (
                e.NodeFailReported(node_id=node_id, attempt=attempt, error=error),
                e.NodeFailed(node_id=node_id, error=error),
            )
        case e.ExecutionCompleted(result=dict(result)) if result:
            error = e.Failure(_too_large("the result of the execution", result), "RESULT_TOO_LARGE")
            largest = max(result, key=lambda node_id: len(msgspec.json.encode(result[node_id])))
            return (
                e.ExecutionFailRequested(failed_node_id=largest, error=error),
                e.ExecutionFailed(failed_node_id=largest, error=error),
            )
    return None


def _too_large(what: str, value: object) -> str:
    size = len(msgspec.json.encode(value))
    return f"{what} has {size} bytes of JSON, more than the NATS message limit (max_payload)"
