"""The work queue: one subject per tag, one message per run."""

from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from pyoco_server.domain import wire
from pyoco_server.domain.dispositions import DeadLetter
from pyoco_server.domain.jobs import Job
from pyoco_server.errors import NatsUnavailable, RequestTooLarge
from pyoco_server.jetstream.connection import ApiError, NatsConnection, PayloadTooLarge
from pyoco_server.jetstream.leader import StoredMessage, next_of_leader
from pyoco_server.jetstream.scan import scan, sequence_of
from pyoco_server.usecases.ports import QueuedJob, Revision

REVISION_HEADER = "Pyoco-Run-Revision"
RETENTION_HEADER = "Pyoco-Run-Retention"


class _Consumer(Struct, frozen=True):
    """How far the deliveries of a subject are."""

    max_deliver: int
    delivered: int
    ack_floor: int
    is_idle: bool
    """Nothing that it has delivered waits for an acknowledgement or the next delivery."""

    def has_given_up(self, sequence: int) -> bool:
        """Of a message that is stored: whether it was delivered, and is not waited for any more."""
        return sequence <= self.ack_floor or (self.is_idle and sequence <= self.delivered)


_NOBODY = _Consumer(0, 0, 0, is_idle=True)


class WorkQueue:
    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        subject_prefix: str,
        *,
        scans: NatsConnection | None = None,
        retention_sec: float = 0.0,
    ) -> None:
        """`scans`: for what takes long, so that it delays nobody's submit."""
        self._retention = {RETENTION_HEADER: str(retention_sec)} if retention_sec else {}
        self._connection = connection
        self._scans = scans or connection
        self._stream = stream
        self._prefix = subject_prefix

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        data = wire.encode(job)
        headers = {
            "Nats-Msg-Id": message_id or job.run_id,
            REVISION_HEADER: str(revision),
            **self._retention,
        }
        try:
            return await self._publish(f"{self._prefix}.{job.tag}", data, headers)
        except PayloadTooLarge as error:
            raise RequestTooLarge(f"the job has {len(data)} bytes: {error}") from error

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> bool:
        """Unanswered is unknown, not failed: it is repeated, and the message id makes that harmless."""
        try:
            ack = await self._connection.publish_acked(subject, data, headers)
        except ApiError:
            raise
        except NatsUnavailable:
            await self._connection.publish_acked(subject, data, headers)
            return True
        return not ack.duplicate

    async def jobs(self) -> list[QueuedJob]:
        consumers = await self._consumers()  # first: what is delivered meanwhile is not given up
        return [
            QueuedJob(
                message.sequence,
                wire.run_id_in(message.data),
                consumer.max_deliver,
                consumer.has_given_up(message.sequence),
            )
            async for message in self._messages()
            for consumer in (consumers.get(message.subject, _NOBODY),)
        ]

    async def _messages(self) -> AsyncIterator[StoredMessage]:
        """All that the leader has when this begins.

        A replica that is behind may answer the scan. It lacks the newest messages and no others, because
        every replica stores them in the leader's order. What is behind its last one is asked of the leader.
        A leader that was cut off takes itself for one for some seconds; a sweep waits longer than that.
        """
        subjects, reached = f"{self._prefix}.>", 0
        last = (await self._state())["last_seq"]
        async for found in scan(self._scans, self._stream, subjects):
            reached = sequence_of(found)
            yield StoredMessage(reached, (found.headers or {}).get("Nats-Subject", ""), found.data)
        while reached < last and (
            message := await next_of_leader(self._scans, self._stream, subjects, reached)
        ):
            reached = message.sequence
            yield message

    async def count(self) -> int:
        count: int = (await self._state())["messages"]
        return count

    async def _state(self) -> dict[str, Any]:
        """As the stream's leader has it."""
        info = await self._scans.api(f"STREAM.INFO.{self._stream}")
        state: dict[str, Any] = info["state"]
        return state

    async def run_ids(self) -> set[str]:
        return {job.run_id for job in await self.jobs() if job.run_id is not None}

    async def _consumers(self) -> dict[str, _Consumer]:
        """By the subject of the jobs that each delivers."""
        found: dict[str, _Consumer] = {}
        offset, total = 0, 1
        while offset < total:
            answer = await self._scans.api(f"CONSUMER.LIST.{self._stream}", {"offset": offset})
            listed = answer.get("consumers") or []
            found |= {one["config"].get("filter_subject", ""): _consumer(one) for one in listed}
            offset, total = offset + max(1, len(listed)), answer.get("total", 0)
        return found


def _consumer(info: dict[str, Any]) -> _Consumer:
    return _Consumer(
        max_deliver=max(0, info["config"].get("max_deliver", 0)),
        delivered=info["delivered"]["stream_seq"],
        ack_floor=info["ack_floor"]["stream_seq"],
        is_idle=not info.get("num_ack_pending", 0),
    )


class DlqStream:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix

    async def publish(self, letter: DeadLetter, tag: str) -> None:
        await self._connection.publish_acked(f"{self._prefix}.{tag}", wire.encode(letter), {})

    async def count(self) -> int:
        info = await self._connection.api(f"STREAM.INFO.{self._stream}")
        count: int = info["state"]["messages"]
        return count
