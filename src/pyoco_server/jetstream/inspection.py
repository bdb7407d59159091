"""What an installation looks like from NATS: for somebody who wants to know why it does not work."""

import time
from collections import Counter
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import wire
from pyoco_server.domain.workers import WorkerRecord
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.scan import scan
from pyoco_server.jetstream.streams import StreamSpec, stream_config
from pyoco_server.jetstream.topology import resources


class StreamReport(Struct, frozen=True, kw_only=True):
    name: str
    purpose: str
    state: Literal["ok", "missing", "different", "unusable"]
    """`different`: it works, with settings that are not those of the configuration."""
    differences: str = ""


class WorkerReport(Struct, frozen=True):
    record: WorkerRecord
    clock_ahead_sec: float
    """How far the worker's clock is ahead of the one of NATS."""


class NatsReport(Struct, frozen=True, kw_only=True):
    version: str
    clock_ahead_sec: float
    """How far the clock of NATS is ahead of ours."""
    streams: list[StreamReport]
    workers: list[WorkerReport]
    waiting: dict[str, int]
    """Jobs that no worker has ended yet, by tag."""


async def inspect(connection: NatsConnection, config: NatsBackendConfig) -> NatsReport:
    """Reads, and creates nothing."""
    streams = [await _inspect_stream(connection, spec, config) for spec in resources(config)]
    there = {report.name for report in streams if report.state != "missing"}
    workers = f"KV_{config.workers_kv_bucket}"
    return NatsReport(
        version=connection.server_version,
        clock_ahead_sec=await _clock_ahead(connection),
        streams=streams,
        workers=await _workers(connection, workers) if workers in there else [],
        waiting=await _waiting(connection, config) if config.work_stream in there else {},
    )


async def _inspect_stream(
    connection: NatsConnection, spec: StreamSpec, config: NatsBackendConfig
) -> StreamReport:
    found = await stream_config(connection, spec.name)
    if found is None:
        return StreamReport(name=spec.name, purpose=spec.purpose, state="missing")
    wanted = {**spec.config, "num_replicas": config.jetstream_replicas}
    different = {key: value for key, value in wanted.items() if not _is_same(found.get(key), value)}
    unusable = [key for key, value in spec.must_match.items() if found.get(key) != value]
    return StreamReport(
        name=spec.name,
        purpose=spec.purpose,
        state="unusable" if unusable else "different" if different else "ok",
        differences=", ".join(f"{key} {found.get(key)!r} not {value!r}" for key, value in different.items()),
    )


def _is_same(found: Any, wanted: Any) -> bool:
    """What is off or unlimited is left out of the server's answer, or is 0 or -1 there."""
    unset = (None, False, 0, -1)
    return found == wanted or (found in unset and wanted in unset)


async def _clock_ahead(connection: NatsConnection) -> float:
    """From the time that the server tells with every stream: no stream, no time."""
    asked = time.time()
    listed = await connection.api("STREAM.LIST", {"offset": 0})
    middle = (asked + time.time()) / 2
    times = [stream["ts"] for stream in listed.get("streams") or [] if "ts" in stream]
    return _timestamp(max(times)) - middle if times else 0.0


async def _workers(connection: NatsConnection, stream: str) -> list[WorkerReport]:
    found = []
    async for message in scan(connection, stream, ">"):
        headers = message.headers or {}
        if "KV-Operation" in headers:
            continue
        record = wire.decode_worker(message.data)
        written_at = _timestamp(headers["Nats-Time-Stamp"])
        found.append(WorkerReport(record, record.updated_at - written_at if record.updated_at else 0.0))
    return sorted(found, key=lambda worker: worker.record.worker_id)


async def _waiting(connection: NatsConnection, config: NatsBackendConfig) -> dict[str, int]:
    answer = await connection.api(f"STREAM.INFO.{config.work_stream}", {"subjects_filter": ">"})
    subjects = answer["state"].get("subjects") or {}
    by_tag: Counter[str] = Counter()
    for subject, count in subjects.items():
        by_tag[subject.removeprefix(f"{config.work_subject_prefix}.")] += count
    return dict(by_tag)


def _timestamp(text: str) -> float:
    """The server writes nanoseconds, Python reads microseconds at most."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6] or '0'}+00:00").timestamp()
