"""A17: every route wants its scope, before anything else is looked at. Generated from OpenAPI."""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import APIRouter, Request, Response
from starlette.routing import Mount, Route

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.auth import Scope
from pyoco_server.http_api import create_app
from pyoco_server.http_api.access import AUDIT_DOCS, ScopedRoute, needs
from pyoco_server.http_api.pages import SANDBOX_PATH
from pyoco_server.memory import open_memory_gateway_backend
from support.events import URL, define
from support.gateway import RunningGateway, documented_paths, memory_app, new_key
from support.watching import stream

WITHOUT_SCOPE = {("get", "/health"), ("get", "/ready"), ("get", "/metrics")}
NOT_JSON = b'{"unfinished'


def paths_with_keys() -> dict[str, dict[str, Any]]:
    return documented_paths(http_auth_mode="api_key")


def security() -> dict[tuple[str, str], Any]:
    return {
        (method, path): operation.get("security")
        for path, operations in paths_with_keys().items()
        for method, operation in operations.items()
    }


def routes() -> dict[tuple[str, str], Any]:
    return {route: needed for route, needed in security().items() if route not in WITHOUT_SCOPE}


@dataclass(frozen=True)
class Keys:
    gateway: RunningGateway
    by_scope: dict[Scope, dict[str, str]]


@pytest.fixture
async def keys() -> AsyncIterator[Keys]:
    async with memory_app(http_auth_mode="api_key") as gateway:
        store = gateway.backend.api_keys
        yield Keys(gateway, {scope: await new_key(store, "acme", scope.value, scope) for scope in Scope})


def test_openapi_names_one_scope_for_every_route() -> None:
    assert security().keys() >= WITHOUT_SCOPE
    for route, needed in routes().items():
        assert [list(one) for one in needed] == [["api_key"]], route
        (names,) = needed[0].values()
        assert [Scope(name) for name in names] == names, route


STARTING = {
    "/runs", "/runs/batch", "/runs/yaml", "/executions", "/api/workflow-events",
    "/api/workflow-templates/{template_id}/start",
}  # fmt: skip
OF_SETTINGS = ("/wheels", "/api/workflow-events/notification-settings")
WITH_STATE = ("/runs", "/executions", "/workers")


def scope_of(method: str, path: str) -> Scope:
    """What a key may do, in general. A route that wants another scope needs a line here."""
    if path.startswith(("/api-keys", "/audit")):
        return Scope.ADMIN
    if method == "get" or path in ("/schedules/preview", "/graphs/preview"):
        return Scope.READ
    if method == "post" and path in STARTING:
        return Scope.SUBMIT
    if method == "put" or path.startswith(OF_SETTINGS):
        return Scope.DEPLOY
    return Scope.DEPLOY if method == "delete" and not path.startswith(WITH_STATE) else Scope.OPERATE


def test_every_route_wants_the_scope_of_its_kind() -> None:
    found = {route: needed[0]["api_key"][0] for route, needed in routes().items()}
    assert found == {route: scope_of(*route).value for route in found}


def routes_in(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Mount):
            yield "mount", route.path
        elif isinstance(route, Route):
            yield from ((method.lower(), route.path_format) for method in route.methods or ())
        else:
            yield from routes_in(route.original_router.routes)


def test_no_route_is_left_out_of_openapi() -> None:
    """What is left out would not be tested here."""
    app = create_app(NatsBackendConfig(http_auth_mode="api_key"), open_backend=open_memory_gateway_backend)
    found = {(method, path) for method, path in routes_in(app.routes) if method != "head"}
    paths = ("/", "/docs", "/openapi.json", SANDBOX_PATH)
    pages = {("mount", "/static"), *(("get", path) for path in paths)}
    assert found == set(security()) | pages


def test_openapi_asks_for_no_key_where_the_server_asks_for_none() -> None:
    with_keys, without = paths_with_keys(), documented_paths()
    for method, path in routes():
        assert without[path][method]["security"] == [*with_keys[path][method]["security"], {}]


def test_a_route_without_a_declared_scope_is_refused_when_it_is_made() -> None:
    async def endpoint(_request: Request) -> Response:
        return Response()

    router = APIRouter(route_class=ScopedRoute)
    with pytest.raises(TypeError, match="declare its scope"):
        router.get("/new")(endpoint)
    for scope in (Scope.OPERATE, Scope.DEPLOY, Scope.ADMIN):
        with pytest.raises(TypeError, match="declare its audit action"):
            router.post("/new")(needs(scope)(endpoint))
    router.post("/new")(needs(Scope.SUBMIT)(endpoint))


async def test_a17_a_key_may_do_what_its_scope_names_and_nothing_else(keys: Keys) -> None:
    """ERR-PYOCO-0060"""
    for (method, path), needed in routes().items():
        wanted = Scope(needed[0]["api_key"][0])
        for scope, header in keys.by_scope.items():
            if scope is wanted and path == "/runs/watch":
                continue  # has no end; see below
            answer = await keys.gateway.client.request(
                method.upper(), re.sub(r"\{\w+\}", "nothing", path), headers=header, content=NOT_JSON
            )
            found = answer.json() if "json" in answer.headers["content-type"] else {}
            if scope is wanted:
                assert answer.status_code != 403, (method, path, scope)
            else:
                assert (answer.status_code, found["scope"], found["err_id"]) == (
                    403,
                    wanted.value,
                    "ERR-PYOCO-0060",
                ), (method, path, scope)
                assert repr(wanted.value) in found["detail"]


async def test_the_list_of_runs_is_watched_with_read(keys: Keys) -> None:
    key = keys.by_scope[Scope.READ]["X-API-Key"]
    async with stream(keys.gateway.app, "/runs/watch", x_api_key=key) as watching:
        assert await watching.event() is not None


async def test_a_missing_key_is_reported_before_a_missing_scope(keys: Keys) -> None:
    for method, path in routes():
        answer = await keys.gateway.client.request(method.upper(), re.sub(r"\{\w+\}", "nothing", path))
        assert answer.status_code == 401, (method, path)


async def test_metrics_and_probes_need_no_scope(keys: Keys) -> None:
    for header in keys.by_scope.values():
        for _, path in WITHOUT_SCOPE:
            assert (await keys.gateway.client.get(path, headers=header)).status_code == 200


async def test_without_authentication_everything_is_allowed() -> None:
    async with memory_app() as gateway:
        for method, path in routes():
            if path != "/runs/watch":
                answer = await gateway.client.request(method.upper(), re.sub(r"\{\w+\}", "nothing", path))
                assert answer.status_code not in (401, 403), (method, path)


async def test_an_unknown_query_is_not_looked_at_without_the_scope(keys: Keys) -> None:
    answer = await keys.gateway.client.get("/runs?colour=red", headers=keys.by_scope[Scope.SUBMIT])
    assert answer.status_code == 403


async def test_creating_an_execution_by_a_command_also_needs_submit(keys: Keys) -> None:
    """Otherwise `operate` would include it."""
    answer = await keys.gateway.client.post(
        "/executions/e/commands",
        json={"command": "CreateExecution", "graph_id": "g"},
        headers=keys.by_scope[Scope.OPERATE],
    )
    assert (answer.status_code, answer.json()["scope"]) == (403, "submit")


@pytest.mark.parametrize("token", ["", "event-token"])
async def test_an_event_needs_submit_or_other_credentials(token: str) -> None:
    async with memory_app(
        http_auth_mode="api_key", workflow_event_token=token, workflow_event_tenant="acme"
    ) as gateway:
        keys = gateway.backend.api_keys
        reading = await new_key(keys, "acme", "reading", Scope.READ)
        all_scopes = await new_key(keys, "acme", "all", *Scope)
        client = gateway.client
        client.headers.update(all_scopes)
        await define(client)
        body = {"template_id": "close", "year": 2026, "month": 2}
        refused = await client.post(URL, json=body, headers=reading)
        assert (refused.status_code, refused.json()["scope"]) == (403, "submit")
        assert (await client.post(URL, json=body, headers=all_scopes)).status_code == 200
        if token:
            with_token = {**reading, "X-Workflow-Event-Token": token}
            assert (await client.post(URL, json=body, headers=with_token)).status_code == 200


def test_what_changes_something_names_its_audit_action() -> None:
    for path, operations in paths_with_keys().items():
        for method, operation in operations.items():
            is_change = method != "get" and operation["security"][0]["api_key"][0] not in ("read", "submit")
            assert (AUDIT_DOCS in operation) is is_change, (method, path)
