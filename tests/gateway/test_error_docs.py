"""Which errors a route can answer with is documented at the route."""

import pytest

from pyoco_server.http_api.middleware import is_protected
from support.gateway import documented_paths
from support.tables import every_row

OPEN = {"/health", "/ready"}


def protected() -> list[tuple[str, str]]:
    return [
        (path, method)
        for path, methods in documented_paths().items()
        for method in methods
        if is_protected(path)
    ]


def test_every_path_but_the_probes_needs_a_key() -> None:
    """A path that is missing in the list would be open to everybody."""
    assert {path for path in documented_paths() if not is_protected(path)} == OPEN


@every_row(("path", "method"), protected)
def test_invalid_input_auth_and_an_unavailable_nats_are_documented(path: str, method: str) -> None:
    """ERR-PYOCO-0003, ERR-PYOCO-0014, ERR-PYOCO-0015"""
    responses = documented_paths()[path][method]["responses"]
    assert {"401", "403", "422", "503"} <= set(responses)
    schema = responses["503"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/ErrorBody"}


@every_row(("path", "method"), protected)
def test_what_can_be_missing_is_documented(path: str, method: str) -> None:
    """ERR-PYOCO-0005, ERR-PYOCO-0020, ERR-PYOCO-0023, ERR-PYOCO-0034"""
    # The pause of a tag or flow may come before its first run.
    is_made_by_it = method == "put" or (path.startswith(("/queues/", "/flows/")) and method == "post")
    names_another = (path, method) in (("/executions", "post"), ("/api/workflow-events", "post"))
    can_be_missing = ("{" in path and not is_made_by_it) or names_another
    assert ("404" in documented_paths()[path][method]["responses"]) is can_be_missing


@pytest.mark.parametrize(
    ("path", "method", "err_id"),
    [
        ("/runs", "get", "ERR-PYOCO-0017"),
        ("/runs", "post", "ERR-PYOCO-0002"),
        ("/workers", "get", "ERR-PYOCO-0019"),
        ("/graphs", "get", "ERR-PYOCO-0017"),
        ("/graphs/{graph_id}", "put", "ERR-PYOCO-0002"),
        ("/workers/{worker_id}", "patch", "ERR-PYOCO-0019"),
    ],
)
def test_invalid_input_is_documented_with_its_id(path: str, method: str, err_id: str) -> None:
    assert documented_paths()[path][method]["responses"]["422"]["description"].startswith(err_id)
