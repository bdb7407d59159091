"""The work queue: one subject per tag, one message per run."""

from pyoco_server.domain import wire
from pyoco_server.domain.dispositions import DeadLetter
from pyoco_server.domain.jobs import Job
from pyoco_server.errors import NatsUnavailable, RequestTooLarge
from pyoco_server.jetstream.connection import ApiError, NatsConnection, PayloadTooLarge
from pyoco_server.jetstream.scan import scan
from pyoco_server.usecases.ports import Revision

REVISION_HEADER = "Pyoco-Run-Revision"


class WorkQueue:
    def __init__(self, connection: NatsConnection, stream: str, subject_prefix: str) -> None:
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix

    async def publish(self, job: Job, revision: Revision, message_id: str | None = None) -> bool:
        data = wire.encode(job)
        headers = {"Nats-Msg-Id": message_id or job.run_id, REVISION_HEADER: str(revision)}
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

    async def run_ids(self) -> set[str]:
        messages = scan(self._connection, self._stream, f"{self._prefix}.>")
        found = [wire.run_id_in(message.data) async for message in messages]
        return {run_id for run_id in found if run_id is not None}


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
