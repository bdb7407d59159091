"""Inspection, backup and restore of an installation's JetStream data."""

import asyncio
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.fleet import WorkerRecord
from pyoco_server.domain.queues import tag_in
from pyoco_server.errors import IncompatibleNats, NatsUnavailable, NobodyAnswers
from pyoco_server.jetstream.connection import (
    NOT_FOUND,
    ApiError,
    ErrorInReply,
    NatsConnection,
    dotted,
    raise_api_error,
)
from pyoco_server.jetstream.kv import scan
from pyoco_server.jetstream.queue import DELAYED
from pyoco_server.jetstream.streams import StreamSpec, place_stream, resources, stream_config, stream_info


class StreamReport(Struct, frozen=True, kw_only=True):
    name: str
    purpose: str
    state: Literal["ok", "missing", "different", "unusable"]
    """`different`: usable, but with other settings than the configuration."""
    differences: str = ""
    bytes: int = 0
    """On disk."""


class WorkerReport(Struct, frozen=True):
    record: WorkerRecord
    clock_ahead_sec: float
    """Offset of the worker's clock to NATS."""


class NatsReport(Struct, frozen=True, kw_only=True):
    version: str
    clock_ahead_sec: float
    """Offset of the NATS clock to ours."""
    streams: list[StreamReport]
    workers: list[WorkerReport]
    waiting: dict[str, int]
    """Unfinished jobs by tag."""


async def inspect(connection: NatsConnection, config: NatsBackendConfig) -> NatsReport:
    """Read-only; creates nothing."""
    streams = [await _inspect_stream(connection, spec, config) for spec in resources(config)]
    existing = {report.name for report in streams if report.state != "missing"}
    workers = f"KV_{config.workers_kv_bucket}"
    return NatsReport(
        version=dotted(connection.server_version),
        clock_ahead_sec=await _clock_ahead(connection),
        streams=streams,
        workers=await _workers(connection, workers) if workers in existing else [],
        waiting=await _waiting(connection, config) if config.work_stream in existing else {},
    )


async def _inspect_stream(
    connection: NatsConnection, spec: StreamSpec, config: NatsBackendConfig
) -> StreamReport:
    info = await stream_info(connection, spec.name)
    if info is None:
        return StreamReport(name=spec.name, purpose=spec.purpose, state="missing")
    found = info["config"]
    wanted = {**spec.config, "num_replicas": config.jetstream_replicas}
    different = {key: value for key, value in wanted.items() if not _is_same(found.get(key), value)}
    unusable = [key for key, value in spec.must_match.items() if found.get(key) != value]
    return StreamReport(
        name=spec.name,
        purpose=spec.purpose,
        state="unusable" if unusable else "different" if different else "ok",
        differences=", ".join(f"{key} {found.get(key)!r} not {value!r}" for key, value in different.items()),
        bytes=info["state"]["bytes"],
    )


def _is_same(found: Any, wanted: Any) -> bool:
    """The server omits disabled or unlimited settings, or reports them as 0 or -1."""
    unset = (None, False, 0, -1)
    return found == wanted or (found in unset and wanted in unset)


async def _clock_ahead(connection: NatsConnection) -> float:
    """From the server time in stream information; 0 without any stream."""
    started = time.time()
    listed = await connection.api("STREAM.LIST", {"offset": 0})
    middle = (started + time.time()) / 2
    times = [stream["ts"] for stream in listed.get("streams") or [] if "ts" in stream]
    return _timestamp(max(times)) - middle if times else 0.0


async def _workers(connection: NatsConnection, stream: str) -> list[WorkerReport]:
    found = []
    async for message in scan(connection, stream, ">"):
        headers = message.headers or {}
        if "KV-Operation" in headers:
            continue
        record = codec.decode_worker(message.data)
        written_at = _timestamp(headers["Nats-Time-Stamp"])
        found.append(WorkerReport(record, record.updated_at - written_at if record.updated_at else 0.0))
    return sorted(found, key=lambda worker: worker.record.worker_id)


async def _waiting(connection: NatsConnection, config: NatsBackendConfig) -> dict[str, int]:
    answer = await connection.api(f"STREAM.INFO.{config.work_stream}", {"subjects_filter": ">"})
    subjects = answer["state"].get("subjects") or {}
    by_tag: Counter[str] = Counter()
    delayed = f"{config.work_subject_prefix}.{DELAYED}."
    for subject, count in subjects.items():
        if not subject.startswith(delayed):
            by_tag[tag_in(subject)] += count
    return dict(by_tag)


def _timestamp(text: str) -> float:
    """The server writes nanoseconds, Python reads microseconds at most."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6] or '0'}+00:00").timestamp()


# Backup and restore with JetStream's own snapshots, which include consumers and need no downtime.

CHUNK_BYTES = 128 * 1024
SILENCE_SEC = 30.0
"""Timeout between two chunks."""
RETRY_SEC = 0.05
_NO_CONTENT = "204"


class SavedStream(msgspec.Struct, frozen=True):
    """A stream's description from JetStream, needed to restore it."""

    config: dict[str, Any]
    state: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def messages(self) -> int:
        return int(self.state["messages"])


async def save_stream(connection: NatsConnection, name: str, directory: Path) -> SavedStream | None:
    """None if there is no such stream. The description is written last, so an incomplete backup has none."""
    chunks: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = connection.new_inbox()
    stop = await connection.listen(inbox, chunks.put)
    try:
        answer = await _snapshot(connection, name, inbox)
        if answer is None:
            return None
        with _content(directory, name).open("wb") as file:
            await _receive(connection, chunks, file)
    finally:
        await stop()
    saved = msgspec.convert(answer, SavedStream)
    _description(directory, name).write_bytes(msgspec.json.encode(saved))
    return saved


async def _snapshot(connection: NatsConnection, name: str, inbox: str) -> dict[str, Any] | None:
    body = {"deliver_subject": inbox, "chunk_size": CHUNK_BYTES}
    try:
        return await connection.api(f"STREAM.SNAPSHOT.{name}", body)
    except ApiError as error:
        if error.err_code == NOT_FOUND:
            return None
        raise


async def _receive(connection: NatsConnection, chunks: "asyncio.Queue[Msg]", file: BinaryIO) -> None:
    """The server waits for acknowledgements of chunks with a reply subject; an empty chunk is the end."""
    while True:
        try:
            async with asyncio.timeout(SILENCE_SEC):
                chunk = await chunks.get()
        except TimeoutError as error:
            raise NatsUnavailable("nats unavailable: the snapshot of a stream was interrupted") from error
        if not chunk.data:
            _check_end(chunk)
            return
        file.write(chunk.data)
        if chunk.reply:
            await connection.publish(chunk.reply, b"")


def _check_end(chunk: Msg) -> None:
    headers = chunk.headers or {}
    status = headers.get("Status", _NO_CONTENT)
    if status != _NO_CONTENT:
        raise NatsUnavailable(f"nats unavailable: snapshot: {status} {headers.get('Description', '')}")


def saved_streams(directory: Path) -> list[SavedStream]:
    """The streams of a backup by name; a file without a description is incomplete and ignored."""
    return [
        msgspec.json.decode(path.read_bytes(), type=SavedStream)
        for path in sorted(directory.glob("*.stream.json"))
    ]


async def require_absent(connection: NatsConnection, streams: list[SavedStream]) -> None:
    """Raises IncompatibleNats if a stream exists: a restore overwrites nothing and is never partial."""
    taken = [stream.name for stream in streams if await stream_config(connection, stream.name) is not None]
    if taken:
        raise IncompatibleNats(
            f"existing streams: {', '.join(taken)}; restore into a NATS without these streams, "
            "before starting any gateway or worker"
        )


async def restore_stream(
    connection: NatsConnection, saved: SavedStream, directory: Path, replicas: int
) -> None:
    body = {"config": {**saved.config, "num_replicas": replicas}, "state": saved.state}
    answer = await place_stream(connection, f"STREAM.RESTORE.{saved.name}", body)
    subject = answer["deliver_subject"]
    with _content(directory, saved.name).open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            await _send(connection, subject, chunk)
    await _send(connection, subject, b"")


async def _send(connection: NatsConnection, subject: str, chunk: bytes) -> None:
    """Retry while there is no responder: in a cluster our node learns of the restore a moment later."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SILENCE_SEC
    while True:
        try:
            reply = await connection.request(subject, chunk, timeout=SILENCE_SEC)
        except NobodyAnswers:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(RETRY_SEC)
        else:
            return _check_taken(reply)


def _check_taken(reply: Msg) -> None:
    error = msgspec.json.decode(reply.data).get("error") if reply.data else None
    if error is not None:
        raise_api_error(msgspec.convert(error, ErrorInReply))


def _content(directory: Path, name: str) -> Path:
    return directory / f"{name}.stream"


def _description(directory: Path, name: str) -> Path:
    return directory / f"{name}.stream.json"
