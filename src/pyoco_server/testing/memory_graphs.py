"""The versions of graphs in memory."""

from pyoco_server.domain import wire
from pyoco_server.domain.execution.graph_records import (
    GraphRecord,
    GraphSummary,
    decode_graph_record,
    decode_graph_summary,
)
from pyoco_server.testing.memory_store import MemoryStore
from pyoco_server.usecases.ports import Revision, Versioned


class MemoryGraphs(MemoryStore[GraphRecord]):
    def __init__(self) -> None:
        super().__init__(wire.encode, decode_graph_record)

    async def newest(self, tenant: str, after: Revision, limit: int) -> list[Versioned[GraphSummary]]:
        found = [
            Versioned(decode_graph_summary(data), revision)
            for key, (data, revision) in self._values.items()
            if key.split(".")[:-1] == [tenant] and revision > after
        ]
        return sorted(found, key=lambda stored: stored.revision)[:limit]
