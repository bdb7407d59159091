"""Execution logs in one stream, with a subject per execution and a message per commit; graphs in a bucket."""

import base64
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from pyoco_server.domain import codec
from pyoco_server.domain.codec import Unreadable
from pyoco_server.domain.executions.codec import decode_commit, encode_commit
from pyoco_server.domain.executions.events import Commit
from pyoco_server.domain.executions.graph_versions import (
    GraphRecord,
    GraphSummary,
    decode_graph_record,
    decode_graph_summary,
)
from pyoco_server.domain.executions.records import LoggedCommit
from pyoco_server.errors import NatsUnavailable, RequestTooLarge
from pyoco_server.jetstream.connection import ApiError, NatsConnection, PayloadTooLarge
from pyoco_server.jetstream.kv import NO_MESSAGE, KvStore, is_removal, scan
from pyoco_server.logs import get_logger
from pyoco_server.usecases.concurrency import off_loop
from pyoco_server.usecases.ports.gateway import BEGINNING
from pyoco_server.usecases.ports.stores import Revision, Versioned, WrongRevision

log = get_logger(__name__)


class JetStreamExecutionLog:
    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        subject_prefix: str,
        *,
        is_replicated: bool,
        allows_ttl: bool = False,
    ) -> None:
        self._allows_ttl = allows_ttl
        self._connection = connection
        self._stream = stream
        self._prefix = subject_prefix
        self._is_replicated = is_replicated

    async def append(self, logged: LoggedCommit, expected: Revision) -> Revision:
        data = encode_commit(logged)
        commit = logged.commit
        headers = {
            "Nats-Msg-Id": commit.command_id,
            "Nats-Expected-Last-Subject-Sequence": str(expected),
        }
        subject = f"{self._prefix}.{commit.execution_id}"
        try:
            return await self._publish(subject, data, headers)
        except PayloadTooLarge as error:
            raise RequestTooLarge(f"the events of this command take {len(data)} bytes: {error}") from error
        except ApiError:
            raise
        except NatsUnavailable:
            return await self._retry(subject, data, headers, expected, commit)

    async def bury(self, logged: LoggedCommit, expected: Revision, ttl_sec: float | None = None) -> None:
        """Older streams allow no TTL; then it stays."""
        commit = logged.commit
        headers = {
            "Nats-Msg-Id": commit.command_id,
            "Nats-Expected-Last-Subject-Sequence": str(expected),
        }
        if ttl_sec is not None and self._allows_ttl:
            headers["Nats-TTL"] = str(max(1, int(ttl_sec)))
        subject = f"{self._prefix}.{commit.execution_id}"
        await self._connection.publish_acked(subject, encode_commit(logged), headers)

    async def erase(self, execution_id: str) -> None:
        subject = f"{self._prefix}.{execution_id}"
        await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": subject, "keep": 1})

    async def _retry(
        self, subject: str, data: bytes, headers: dict[str, str], expected: Revision, commit: Commit
    ) -> Revision:
        """A timeout leaves the outcome unknown; a log that has advanced may contain this very commit."""
        try:
            return await self._publish(subject, data, headers)
        except WrongRevision:
            async for logged, revision in self.read(commit.execution_id, expected):
                if logged is not None and logged.commit == commit:
                    return revision
            raise

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str]) -> Revision:
        """A repeated command may be decided differently than the commit that the log already has.

        The server detects the duplicate by its message id only, so the content is compared here.
        """
        ack = await self._connection.publish_acked(subject, data, headers)
        if ack.duplicate and await self._message(ack.seq) != data:
            raise WrongRevision("the log has a different commit of this command")
        return Revision(ack.seq)

    async def _message(self, sequence: int) -> bytes:
        answer = await self._connection.api(f"STREAM.MSG.GET.{self._stream}", {"seq": sequence})
        return base64.b64decode(answer["message"].get("data", ""))

    async def read(
        self, execution_id: str, after: Revision = BEGINNING
    ) -> AsyncIterator[tuple[LoggedCommit | None, Revision]]:
        subject = f"{self._prefix}.{execution_id}"
        async for message in scan(self._connection, self._stream, subject, start=after + 1):
            after = Revision(int((message.headers or {})["Nats-Sequence"]))
            yield await off_loop(len(message.data), commit_in, message.data, message.subject), after
        # A lagging replica may serve the scan, so the leader is asked for what follows.
        while self._is_replicated and (found := await self._next_of_leader(subject, after)) is not None:
            after = Revision(found["seq"])
            yield commit_in(base64.b64decode(found.get("data", "")), subject), after

    async def _next_of_leader(self, subject: str, after: Revision) -> dict[str, Any] | None:
        try:
            answer = await self._connection.api(
                f"STREAM.MSG.GET.{self._stream}", {"seq": after + 1, "next_by_subj": subject}
            )
        except ApiError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        message: dict[str, Any] = answer["message"]
        return message


def commit_in(data: bytes, place: str) -> LoggedCommit | None:
    """Skip foreign data in the log; an execution does not fail because of it."""
    try:
        return decode_commit(data)
    except Unreadable as error:
        log.warning(
            "skipped unreadable data in an execution log",
            action="execution.unreadable",
            key=place,
            exc_info=error,
        )
        return None


# Graphs

AT_ONCE = 16
"""Graphs per batch; each may have 512 KiB."""


class JetStreamGraphs(KvStore[GraphRecord]):
    def __init__(self, connection: NatsConnection, bucket: str, stream_config: dict[str, Any]) -> None:
        super().__init__(connection, bucket, stream_config, codec.encode, decode_graph_record)

    async def newest(self, tenant: str, after: Revision, limit: int) -> list[Versioned[GraphSummary]]:
        """Read only the page: keys of newest versions have two parts."""
        found: list[Versioned[GraphSummary]] = []
        subjects = f"{self._prefix}{tenant}.*"
        messages = scan(self._connection, self._stream, subjects, batch=min(limit, AT_ONCE), start=after + 1)
        async with aclosing(messages):
            async for message in messages:
                headers = message.headers or {}
                if not is_removal(headers):
                    self._add(found, message.data, Revision(int(headers["Nats-Sequence"])))
                if len(found) == limit:
                    break
        return found

    def _add(self, found: list[Versioned[GraphSummary]], data: bytes, revision: Revision) -> None:
        try:
            found.append(Versioned(decode_graph_summary(data), revision))
        except codec.Unreadable as error:
            log.warning("skipped an unreadable graph", action="graph.unreadable", exc_info=error)
