"""The JSON codec of the contract: bytes to types and back.

Unknown fields are ignored, so that older and newer versions and other implementations are compatible.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from pyoco_server.domain.audit_trail import AuditEntry
from pyoco_server.domain.auth import ApiKeyRecord
from pyoco_server.domain.bulk import BulkChunk, BulkRecord
from pyoco_server.domain.dead_letters import DeadLetter, LetterMark
from pyoco_server.domain.events.audit import AuditRecord, StoredEvent
from pyoco_server.domain.events.imports import ImportMark
from pyoco_server.domain.events.receipts import KeptResume, Receipt, Slot
from pyoco_server.domain.events.requests import EventRequest
from pyoco_server.domain.events.retry import NotificationSettings, RetryJob
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.templates import Action, Template
from pyoco_server.domain.fleet import LeaseRecord, WorkerRecord
from pyoco_server.domain.flows import FlowSettings
from pyoco_server.domain.queues import QueueRecord
from pyoco_server.domain.runs.children import ChildAnswer, ChildOrder
from pyoco_server.domain.runs.claims import IdempotencyClaim
from pyoco_server.domain.runs.jobs import Job, check
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import FlowFile, RunSnapshot
from pyoco_server.domain.schedules.model import Schedule, TickPage
from pyoco_server.domain.secrets.model import SecretRecord, VariableRecord
from pyoco_server.domain.shares import Roster
from pyoco_server.domain.wheels import WheelEvent
from pyoco_server.errors import InvalidJob

_encoder = msgspec.json.Encoder()
NOT_READABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""RecursionError: too deeply nested data must not crash a reader."""
_job_decoder = msgspec.json.Decoder(Job)
S = TypeVar("S")


class Unreadable(Exception):
    """Stored bytes that violate the contract: written by another program, or damaged."""


def encode(value: msgspec.Struct | Sequence[msgspec.Struct]) -> bytes:
    return _encoder.encode(value)


def decoding(of: type[S], what: str) -> Callable[[bytes], S]:
    decoder = msgspec.json.Decoder(of)

    def decode(data: bytes) -> S:
        try:
            return decoder.decode(data)
        except NOT_READABLE as error:
            raise Unreadable(f"{what}: {error}") from error

    return decode


decode_run = decoding(RunSnapshot, "run snapshot")
decode_child_order = decoding(ChildOrder, "request for a child run")
decode_child_answer = decoding(ChildAnswer, "answer about a child run")
decode_worker = decoding(WorkerRecord, "worker record")
decode_queue = decoding(QueueRecord, "queue record")
decode_wheel_event = decoding(WheelEvent, "wheel history")
decode_claim = decoding(IdempotencyClaim, "idempotency claim")
decode_bulk = decoding(BulkRecord, "bulk operation")
decode_bulk_chunk = decoding(BulkChunk, "items of a bulk operation")
decode_dead_letter = decoding(DeadLetter, "dead letter")
decode_letter_mark = decoding(LetterMark, "mark of a dead letter")
decode_log_lines = decoding(list[LogLine], "task log")
decode_api_key = decoding(ApiKeyRecord, "API key record")
decode_template = decoding(Template, "workflow template")
decode_action = decoding(Action, "workflow action")
decode_receipt = decoding(Receipt, "workflow event receipt")
decode_kept_resume = decoding(KeptResume, "kept resume")
decode_retry_job = decoding(RetryJob, "retry job")
decode_notification_settings = decoding(NotificationSettings, "notification settings")
decode_source = decoding(Source, "workflow source")
decode_slot = decoding(Slot, "action slot")
decode_lease = decoding(LeaseRecord, "lease")
decode_roster = decoding(Roster, "roster")
decode_import_mark = decoding(ImportMark, "import mark")
decode_flow_file = decoding(FlowFile, "flow.yaml")
decode_flow_settings = decoding(FlowSettings, "settings of a flow")
decode_schedule = decoding(Schedule, "schedule")
decode_tick_page = decoding(TickPage, "page of ticks")
decode_secret = decoding(SecretRecord, "secret")
decode_variable = decoding(VariableRecord, "variable")
decode_stored_event = decoding(StoredEvent, "audit record")


class _Audited(msgspec.Struct):
    record: AuditRecord


_decode_audited = decoding(_Audited, "audit record")


def decode_audited(data: bytes) -> StoredEvent:
    """Without the request, which may be large."""
    return StoredEvent(record=_decode_audited(data).record)


# Values in lists: what may be large is left out, or stays JSON.


def light(of: type[msgspec.Struct], *left_out: str, **changed: Any) -> type[Any]:
    """Like `of`, without some fields and with other types for some."""
    fields = [
        (field.name, changed.get(field.name, field.type), _default_of(field))
        for field in msgspec.structs.fields(of)
        if field.name not in left_out
    ]
    return msgspec.defstruct(of.__name__, fields, kw_only=True)


def _default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.required:
        return msgspec.NODEFAULT
    is_made = field.default_factory is not msgspec.NODEFAULT
    return msgspec.field(default_factory=field.default_factory) if is_made else field.default


decode_audit_entry = decoding(AuditEntry, "audit entry")
_decode_listed_action = decoding(light(Action, params=msgspec.Raw), "workflow action")
_decode_listed_job = decoding(light(RetryJob, "data"), "retry job")
_decode_listed_file = decoding(light(FlowFile, "text"), "flow.yaml")
_decode_listed_resume = decoding(light(KeptResume, request=light(EventRequest, "data")), "kept resume")


def decode_listed_action(data: bytes) -> Action:
    """Its params are JSON."""
    return Action(**msgspec.structs.asdict(_decode_listed_action(data)))


def decode_listed_flow_file(data: bytes) -> FlowFile:
    """Without its text."""
    return FlowFile(**msgspec.structs.asdict(_decode_listed_file(data)))


def decode_listed_job(data: bytes) -> RetryJob:
    """Without the data of its event."""
    return RetryJob(**msgspec.structs.asdict(_decode_listed_job(data)))


def decode_listed_resume(data: bytes) -> KeptResume:
    """Without the data of its event."""
    fields = msgspec.structs.asdict(_decode_listed_resume(data))
    return KeptResume(**{**fields, "request": EventRequest(**msgspec.structs.asdict(fields["request"]))})


class _JobWithKeptTasks(msgspec.Struct):
    """A job that keeps outputs of another run, in a form that older workers refuse.

    They would ignore the kept tasks and run them again. Without a `flow_name` the job is invalid to them.
    """

    run_id: str
    tag: str
    job_with_kept_tasks: bytes


class _JobWithReferences(msgspec.Struct):
    """The same for a job whose params name secrets or variables: an older worker would run it with the text.

    Its own form, because a worker that knows the other one may not have this one.
    """

    run_id: str
    tag: str
    job_with_references: bytes


class _JobWithValues(msgspec.Struct):
    """The same for a job whose params refer to stored values: an older worker would run it with these."""

    run_id: str
    tag: str
    job_with_values: bytes


_wrapped_decoders = (
    (msgspec.json.Decoder(_JobWithValues), "job_with_values"),
    (msgspec.json.Decoder(_JobWithKeptTasks), "job_with_kept_tasks"),
    (msgspec.json.Decoder(_JobWithReferences), "job_with_references"),
)


def encode_job(job: Job) -> bytes:
    data = encode(job)
    if job.values:
        return encode(_JobWithValues(job.run_id, job.tag, data))
    if job.references is not None:
        return encode(_JobWithReferences(job.run_id, job.tag, data))
    return data if job.kept is None else encode(_JobWithKeptTasks(job.run_id, job.tag, data))


def decode_job(data: bytes) -> Job:
    try:
        return check(_job_decoder.decode(data))
    except NOT_READABLE as error:
        wrapped = _wrapped_job_in(data)
        if wrapped is None:
            raise InvalidJob(str(error)) from error
        return check(wrapped)


def _wrapped_job_in(data: bytes) -> Job | None:
    for decoder, field in _wrapped_decoders:
        with suppress(*NOT_READABLE):
            return _job_decoder.decode(getattr(decoder.decode(data), field))
    return None


class _RunIdOnly(msgspec.Struct):
    run_id: Any = None


def run_id_in(data: bytes) -> str | None:
    """The run id of an otherwise unreadable job, if possible."""
    try:
        found = msgspec.json.decode(data, type=_RunIdOnly).run_id
    except NOT_READABLE:
        return None
    return found if isinstance(found, str) else None


def payload_excerpt(data: bytes, limit: int = 4_096) -> str:
    """The start of unreadable bytes as text, for diagnosis."""
    return data[:limit].decode("utf-8", errors="replace")
