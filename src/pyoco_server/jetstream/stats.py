"""Records of statistics in a bucket."""

from contextlib import aclosing
from datetime import UTC, datetime

from pyoco_server.domain.stats.records import Bucket, StatsRecord
from pyoco_server.jetstream.kv import KvStore, is_removal, scan
from pyoco_server.usecases.ports.gateway import check_stats_size

MARGIN_SEC = 3600.0
"""Minutes are kept this much longer than they are shown."""
CLOCKS_SEC = 60.0
"""The nodes of a cluster have clocks of their own; one may lead the runs, another the statistics."""


class StatsBucket(KvStore[StatsRecord]):
    """Keys: see `record_key`. Hours expire by the age limit of the bucket."""

    def _ttl(self, key: str, value: StatsRecord) -> float | None:  # noqa: ARG002
        is_minute = key.startswith(f"{Bucket.MINUTE.value}.")
        return Bucket.MINUTE.kept_sec + MARGIN_SEC if is_minute else None

    async def between(
        self, tenant_id: str | None, bucket: Bucket, since: float, until: float
    ) -> list[tuple[int, bytes]]:
        """No record was written before its bucket began."""
        subjects = f"{self._prefix}{bucket.value}.{tenant_id or '*'}.*"
        written = datetime.fromtimestamp(max(0.0, since - CLOCKS_SEC), UTC)
        found: list[tuple[int, bytes]] = []
        size = 0
        since_text = written.isoformat().replace("+00:00", "Z")
        async with aclosing(scan(self._connection, self._stream, subjects, since=since_text)) as messages:
            async for message in messages:
                headers = message.headers or {}
                start = headers["Nats-Subject"].rpartition(".")[2]
                if is_removal(headers) or not start.isdecimal() or not since <= int(start) < until:
                    continue
                found.append((int(start), message.data))
                size += len(message.data)
                check_stats_size(size)
        return sorted(found, key=lambda one: one[0])
