"""What the gateway says of itself in OpenAPI is true: requests made from it find nothing else."""

from importlib.metadata import version
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import allow_header_conformance, positive_data_acceptance
from schemathesis.core.result import Ok
from schemathesis.pytest.lazy import get_all_tests

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import create_app
from pyoco_server.memory import open_memory_gateway_backend

NOT_ASKED = [
    positive_data_acceptance,  # no schema says which text is a cursor, a wheel, a flow, or a key used before
    allow_header_conformance,  # Starlette names the methods of the first route of a path only
]


@pytest.fixture(scope="module")
def description() -> Any:
    app = create_app(NatsBackendConfig(secrets_key="k" * 43), open_backend=open_memory_gateway_backend)
    return schemathesis.openapi.from_asgi("/openapi.json", app).exclude(path="/runs/watch")  # has no end


def test_the_description_has_the_version_of_the_package(description: Any) -> None:
    assert description.raw_schema["info"]["version"] == version("pyoco-server")


def answers_as_documented(case: Any) -> None:
    case.call_and_validate(excluded_checks=NOT_ASKED)


@pytest.mark.parametrize("examples", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_the_gateway_answers_as_documented(
    description: Any, subtests: pytest.Subtests, examples: int
) -> None:
    """Every boundary of every field, and random requests beside these.

    One test: schemathesis makes its requests while it collects, which each worker of pytest does.
    """
    wanted = settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    made = get_all_tests(
        schema=description, test_func=answers_as_documented, settings=wanted, given_kwargs=None
    )
    operations = 0
    for each in made:
        assert isinstance(each, Ok), each.err()
        operation, test = each.ok()
        with subtests.test(operation.label):
            test()
        operations += 1
    assert operations == description.statistic.operations.selected
