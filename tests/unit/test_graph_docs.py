"""Every key of a graph has its line in the docs."""

import re
from pathlib import Path

import pytest

from pyoco_server.domain.executions import graph_parts, graphs
from pyoco_server.domain.executions.graph_model import Retry
from support.tables import every_row

IN_TEXT = (Path(__file__).parents[2] / "docs/graphs.md").read_text()
DOCUMENTED = set(re.findall(r"`(\w+)`", IN_TEXT))


@every_row("key", ["type", *graphs._TOP_KEYS, *graph_parts._NODE_KEYS, *graph_parts._EDGE_KEYS])
def test_a_key_is_documented(key: str) -> None:
    assert key in DOCUMENTED or f"{key}:" in IN_TEXT


@pytest.mark.parametrize("key", Retry.__struct_fields__)
def test_a_key_of_retry_is_documented(key: str) -> None:
    assert f"{key}:" in IN_TEXT


@pytest.mark.parametrize("policy", list(graphs.JoinPolicy))
def test_a_policy_is_documented(policy: str) -> None:
    assert policy in DOCUMENTED
