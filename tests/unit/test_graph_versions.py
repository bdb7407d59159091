"""Versions of graphs: the same content is the same version, however it is written."""

from typing import Any

import pytest

from pyoco_server.domain.executions.graph_versions import (
    MAX_DEFINITION_BYTES,
    GraphRecord,
    Registration,
    newest_key,
    next_version,
    summary,
    version_key,
)
from pyoco_server.domain.executions.graphs import parse_graph
from pyoco_server.errors import RequestTooLarge
from support.builders import NOW

DEFINITION: dict[str, Any] = {
    "id": "close",
    "nodes": {"a": {"type": "task", "flow": "f", "params": {"x": 1, "y": 2}}, "b": {"type": "wait"}},
    "edges": [{"from": "a", "to": "b"}],
}
SAME = {
    "edges": [{"to": "b", "from": "a", "on": "success", "when": None}],
    "nodes": {
        "b": {"type": "wait", "on_timeout": "fail"},
        "a": {"params": {"y": 2, "x": 1}, "flow": "f", "type": "task", "external": False, "retry": {}},
    },
    "id": "close",
}


def registration(definition: dict[str, Any]) -> Registration:
    return Registration(graph=parse_graph(definition), tenant_id="acme", by="api_key:k", at=NOW)


def first() -> GraphRecord:
    return next_version(None, registration(DEFINITION))


def test_the_first_version_is_one() -> None:
    record = first()
    assert (record.graph_id, record.version, record.tenant_id) == ("close", 1, "acme")
    assert (record.registered_at, record.registered_by) == (NOW, "api_key:k")
    assert record.definition == DEFINITION
    assert summary(record).nodes == 2


def test_the_same_content_is_the_same_version_however_it_is_written() -> None:
    record = first()
    assert next_version(record, registration(SAME)) is record


def test_other_content_is_the_next_version() -> None:
    other = DEFINITION | {"edges": [{"from": "a", "to": "b", "on": "failure"}]}
    second = next_version(first(), registration(other))
    assert second.version == 2
    third = next_version(second, registration(DEFINITION))
    assert third.version == 3, "going back is a step on"
    assert third.sha256 == first().sha256


def test_types_of_values_are_content() -> None:
    nodes = {**DEFINITION["nodes"], "a": {"type": "task", "flow": "f", "params": {"x": 1.0, "y": "2"}}}
    assert next_version(first(), registration(DEFINITION | {"nodes": nodes})).version == 2


def test_a_definition_that_fits_no_message_is_refused() -> None:
    nodes = {"a": {"type": "task", "flow": "f", "params": {"x": "y" * MAX_DEFINITION_BYTES}}}
    with pytest.raises(RequestTooLarge, match="graph close: the definition has 524,"):
        next_version(None, registration({"id": "close", "nodes": nodes}))


def test_keys_of_tenants_and_versions_never_meet() -> None:
    keys = {newest_key(tenant, "g") for tenant in (None, "g", "-", "_")}
    keys |= {version_key(tenant, "g", 1) for tenant in (None, "g", "-", "_")}
    keys |= {newest_key("g", "1"), newest_key(None, "1")}
    assert len(keys) == 10
