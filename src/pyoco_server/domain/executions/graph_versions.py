"""Stored graph versions and their keys.

The newest version has its own key, which is updated by compare-and-set. The previous version is first
copied to a key with its number, so every version is always readable.
"""

import hashlib
from typing import Any

import msgspec
from msgspec import Raw, Struct

from pyoco_server.domain.codec import decoding
from pyoco_server.domain.executions.graphs import Graph, definition_of
from pyoco_server.errors import RequestTooLarge

NO_TENANT = "="
"""Tenant token while auth is off; no tenant has this name."""


class GraphRecord(Struct, frozen=True, kw_only=True):
    graph_id: str
    version: int
    sha256: str
    """Digest of the definition, independent of formatting."""
    registered_at: float
    registered_by: str
    tenant_id: str | None = None
    definition: dict[str, Any]


class GraphSummary(Struct, frozen=True, kw_only=True):
    """A graph's newest version as shown in a list."""

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
    """A record for lists, which need only the number of nodes."""

    graph_id: str
    version: int
    sha256: str
    registered_at: float
    registered_by: str
    tenant_id: str | None = None
    definition: _Listed


_decode_listed = decoding(_ListedRecord, "graph")


def decode_graph_summary(data: bytes) -> GraphSummary:
    """Decode without the definition, which may be large. Raises Unreadable."""
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


# Versions are immutable: new content under the same id is the next version.

MAX_DEFINITION_BYTES = 512 * 1024
"""A version is one NATS message, by default up to 1 MiB."""


class Registration(Struct, frozen=True, kw_only=True):
    """A graph to register as the newest version."""

    graph: Graph
    tenant_id: str | None
    by: str
    at: float


class GraphPreview(Struct, frozen=True):
    """A graph as it would be stored."""

    sha256: str
    """Digest of the definition, independent of formatting."""
    nodes: int
    definition: dict[str, Any]


def preview_of(graph: Graph) -> GraphPreview:
    definition = definition_of(graph)
    return GraphPreview(_digest(_content(definition)), len(graph.nodes), definition)


def _content(definition: dict[str, Any]) -> bytes:
    return msgspec.json.encode(definition, order="deterministic")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def next_version(newest: GraphRecord | None, wanted: Registration) -> GraphRecord:
    """The record of `wanted`; `newest` itself if unchanged. Raises RequestTooLarge."""
    definition = definition_of(wanted.graph)
    content = _content(definition)
    sha256 = _digest(content)
    if newest is not None and newest.sha256 == sha256:
        return newest
    if len(content) > MAX_DEFINITION_BYTES:
        raise RequestTooLarge(
            f"graph {wanted.graph.id}: the definition has {len(content):,} bytes as JSON; "
            f"{MAX_DEFINITION_BYTES:,} are allowed"
        )
    return GraphRecord(
        graph_id=wanted.graph.id,
        version=1 if newest is None else newest.version + 1,
        sha256=sha256,
        registered_at=wanted.at,
        registered_by=wanted.by,
        tenant_id=wanted.tenant_id,
        definition=definition,
    )
