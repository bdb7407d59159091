"""Versions of graphs in their bucket."""

from contextlib import aclosing
from typing import Any

from pyoco_server.domain import wire
from pyoco_server.domain.execution.graph_records import (
    GraphRecord,
    GraphSummary,
    decode_graph_record,
    decode_graph_summary,
)
from pyoco_server.jetstream.connection import NatsConnection
from pyoco_server.jetstream.kv_store import KvStore, is_removal
from pyoco_server.jetstream.scan import scan
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import Revision, Versioned

log = get_logger(__name__)

AT_ONCE = 16
"""Graphs that are read together: each may have 512 KiB."""


class JetStreamGraphs(KvStore[GraphRecord]):
    def __init__(self, connection: NatsConnection, bucket: str, stream_config: dict[str, Any]) -> None:
        super().__init__(connection, bucket, stream_config, wire.encode, decode_graph_record)

    async def newest(self, tenant: str, after: Revision, limit: int) -> list[Versioned[GraphSummary]]:
        """Reads the page, not the bucket: only the keys of newest versions have two parts."""
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
        except wire.Unreadable as error:
            log.warning("an unreadable graph is passed over", action="graph.unreadable", exc_info=error)
