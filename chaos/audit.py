"""What JetStream holds, read with the plain client library and none of our code between."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import nats.errors
from nats.js.errors import NotFoundError

from pyoco_server.domain import codec
from pyoco_server.domain.events.audit import AuditRecord
from pyoco_server.domain.events.receipts import Receipt
from pyoco_server.domain.executions.codec import decode_commit, decode_record
from pyoco_server.domain.executions.events import Event
from pyoco_server.domain.executions.records import ExecutionRecord
from pyoco_server.domain.runs.model import RunSnapshot
from sites import AUDIT, Site

T = TypeVar("T")
BATCH = 500
TRIES = 30


async def messages_of(site: Site, stream: str, subjects: str = ">") -> AsyncIterator[tuple[str, bytes]]:
    """Every message that a stream has now, oldest first."""
    async with site.jetstream() as js:
        left = (await js.stream_info(stream)).state.messages
        if not left:
            return
        pull = await js.pull_subscribe(subjects, stream=stream)
        while left > 0:
            for message in await pull.fetch(min(BATCH, left), timeout=10):
                left -= 1
                yield message.subject, message.data
                await message.ack()
        await pull.unsubscribe()


async def patiently(look: Callable[[Site], Awaitable[T]], site: Site) -> T:
    """A cluster that was just hurt may not answer for some seconds: that is for us to bear."""
    for _ in range(TRIES):
        try:
            return await look(site)
        except (nats.errors.Error, TimeoutError):
            await asyncio.sleep(1.0)
    return await look(site)


async def accepted_writes(site: Site) -> dict[str, list[RunSnapshot]]:
    """By run, every snapshot that was accepted, in order."""
    found: dict[str, list[RunSnapshot]] = defaultdict(list)
    async for subject, data in messages_of(site, AUDIT):
        if data:
            found[subject.rpartition(".")[2]].append(codec.decode_run(data))
    return found


async def _values(site: Site, bucket: str, decode: Callable[[bytes], T]) -> dict[str, T]:
    return {
        subject.rpartition(".")[2]: decode(data)
        async for subject, data in messages_of(site, f"KV_{bucket}")
        if data
    }


async def stored_runs(site: Site) -> dict[str, RunSnapshot]:
    return await _values(site, site.config.runs_kv_bucket, codec.decode_run)


async def cached_executions(site: Site) -> dict[str, ExecutionRecord]:
    return await _values(site, site.config.executions_kv_bucket, decode_record)


async def receipts(site: Site) -> dict[str, Receipt]:
    return await _values(site, site.config.workflow_receipts_kv_bucket, codec.decode_receipt)


async def execution_logs(site: Site) -> dict[str, list[Event]]:
    """By execution, everything that its log says."""
    found: dict[str, list[Event]] = defaultdict(list)
    async for _, data in messages_of(site, site.config.executions_stream):
        commit = decode_commit(data).commit
        found[commit.execution_id] += commit.events()
    return found


async def audit_records(site: Site) -> list[AuditRecord]:
    return [
        codec.decode_stored_event(data).record
        async for _, data in messages_of(site, site.config.audit_stream)
    ]


async def messages_in(site: Site, stream: str) -> int:
    async with site.jetstream() as js:
        count: int = (await js.stream_info(stream)).state.messages
        return count


async def jobs_left(site: Site) -> list[str]:
    """The run ids of the jobs on the queue: by sequence, because a work queue lets nobody else consume."""
    async with site.jetstream() as js:
        state = (await js.stream_info(site.config.work_stream)).state
        found: list[Any] = []
        for sequence in range(state.first_seq, state.last_seq + 1):
            try:
                found.append(await js.get_msg(site.config.work_stream, sequence))
            except NotFoundError:
                continue
        return [codec.run_id_in(message.data) or "?" for message in found]
