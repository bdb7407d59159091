"""What is stored of graphs, and under which keys.

The newest version has a key of its own, which is only ever moved on by compare-and-set. The version before it
is copied to a key with its number first, so every version can be read at every moment.
"""

from typing import Any

from msgspec import Raw, Struct

from pyoco_server.domain.wire import decoding

NO_TENANT = "="
"""Where graphs are kept while auth is off. No tenant has this name."""


class GraphRecord(Struct, frozen=True, kw_only=True):
    graph_id: str
    version: int
    sha256: str
    """Of the definition, however it was written."""
    registered_at: float
    registered_by: str
    tenant_id: str | None = None
    definition: dict[str, Any]


class GraphSummary(Struct, frozen=True, kw_only=True):
    """What a list shows of a graph's newest version."""

    graph_id: str
    version: int
    sha256: str
    registered_at: float
    registered_by: str
    tenant_id: str | None
    nodes: int


decode_graph_record = decoding(GraphRecord, "graph")


class _Listed(Struct, frozen=True):
    nodes: dict[str, Raw]


class _ListedRecord(Struct, frozen=True, kw_only=True):
    """A record of which a list needs the number of its nodes alone."""

    graph_id: str
    version: int
    sha256: str
    registered_at: float
    registered_by: str
    tenant_id: str | None = None
    definition: _Listed


_decode_listed = decoding(_ListedRecord, "graph")


def decode_graph_summary(data: bytes) -> GraphSummary:
    """Without its definition, which may be large. Raises Unreadable."""
    return summary(_decode_listed(data))


def summary(record: GraphRecord | _ListedRecord) -> GraphSummary:
    same = {name: getattr(record, name) for name in GraphSummary.__struct_fields__ if name != "nodes"}
    definition = record.definition
    nodes = definition.nodes if isinstance(definition, _Listed) else definition["nodes"]
    return GraphSummary(**same, nodes=len(nodes))


def tenant_token(tenant_id: str | None) -> str:
    return NO_TENANT if tenant_id is None else tenant_id


def newest_key(tenant_id: str | None, graph_id: str) -> str:
    return f"{tenant_token(tenant_id)}.{graph_id}"


def version_key(tenant_id: str | None, graph_id: str, version: int) -> str:
    return f"{newest_key(tenant_id, graph_id)}.{version}"
