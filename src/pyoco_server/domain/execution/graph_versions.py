"""Which version a graph is. One is never changed: other content under the same id is the next version."""

import hashlib

import msgspec
from msgspec import Struct

from pyoco_server.domain.execution.graph_records import GraphRecord
from pyoco_server.domain.execution.graphs import Graph, definition_of
from pyoco_server.errors import RequestTooLarge

MAX_DEFINITION_BYTES = 512 * 1024
"""A version is one message of NATS, which carries 1 MiB unless its operator says otherwise."""


class Registration(Struct, frozen=True, kw_only=True):
    """A graph that somebody wants to be the newest version."""

    graph: Graph
    tenant_id: str | None
    by: str
    at: float


def next_version(newest: GraphRecord | None, wanted: Registration) -> GraphRecord:
    """The version that `wanted` is: `newest` itself if it says the same. Raises RequestTooLarge."""
    definition = definition_of(wanted.graph)
    content = msgspec.json.encode(definition, order="deterministic")
    sha256 = hashlib.sha256(content).hexdigest()
    if newest is not None and newest.sha256 == sha256:
        return newest
    if len(content) > MAX_DEFINITION_BYTES:
        raise RequestTooLarge(
            f"graph {wanted.graph.id}: its definition has {len(content):,} bytes as JSON; "
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
