"""Fixtures for pytest, which imports this module in every run: it must be cheap."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyoco_server.testing import LocalServer

FLOWS = "pyoco_flows"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        FLOWS,
        "directory, file or module of the flows that pyoco_server runs (default: flows)",
        default="flows",
    )


@pytest.fixture
def pyoco_flows(pytestconfig: pytest.Config) -> Any:
    """What `LocalServer` takes as flows. Override it in a test file or a conftest.py."""
    named = str(pytestconfig.getini(FLOWS))
    path = pytestconfig.rootpath / named
    return path if path.exists() else named


@pytest.fixture
def pyoco_server(pyoco_flows: Any) -> "Iterator[LocalServer]":
    """A server in memory, with a worker that runs `pyoco_flows`."""
    from pyoco_server.testing import LocalServer  # noqa: PLC0415 - only when it is used

    with LocalServer(pyoco_flows) as server:
        yield server


@pytest.fixture
def pyoco_nats_server(pyoco_flows: Any) -> "Iterator[LocalServer]":
    """The same, on an embedded NATS."""
    from pyoco_server.testing import LocalServer  # noqa: PLC0415 - only when it is used

    with LocalServer(pyoco_flows, nats=True) as server:
        yield server
