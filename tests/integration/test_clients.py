"""Both clients, on a real gateway with a real worker: the same calls, results and errors."""

import asyncio
import inspect
import json
import pickle
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import lt
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

from pyoco_server import errors as catalogue
from pyoco_server.cli.stack import gateway as gateway_on
from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_client import (
    AsyncPyocoHttpClient,
    Conflict,
    InvalidRequest,
    NotAllowed,
    NotFound,
    PyocoError,
    PyocoHttpClient,
    ResultNotStored,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunTimedOut,
    ServerUnavailable,
)
from pyoco_server.http_client.schedules import Document, documents_in
from pyoco_server.wiring import open_backend
from support.builders import RUN_ID
from support.gateway import new_key
from support.installation import Lab
from support.nats_server import free_port
from support.silent_proxy import silent_proxy
from support.waiting import until
from support.wheels import a_wheel, wheel_name


class Blocking:
    """A `PyocoHttpClient`, its calls in threads so that the gateway of this process can answer."""

    def __init__(self, url: str, **options: Any) -> None:
        self._client = PyocoHttpClient(url, **options)

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(_found(self._client, name), *args, **options)

    async def items(self, name: str, *args: Any, **options: Any) -> list[Any]:
        return await asyncio.to_thread(lambda: list(_found(self._client, name)(*args, **options)))

    async def close(self) -> None:
        await self.call("close")


class Awaited:
    def __init__(self, url: str, **options: Any) -> None:
        self._client = AsyncPyocoHttpClient(url, **options)

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        return await _found(self._client, name)(*args, **options)

    async def items(self, name: str, *args: Any, **options: Any) -> list[Any]:
        async with aclosing(_found(self._client, name)(*args, **options)) as items:
            return [item async for item in items]

    async def close(self) -> None:
        await self._client.close()


def _found(client: object, name: str) -> Any:
    for part in name.split("."):
        client = getattr(client, part)
    return client


Client = Blocking | Awaited
both = pytest.mark.parametrize("kind", [Blocking, Awaited])


@asynccontextmanager
async def served(kind: Any, config: NatsBackendConfig, **options: Any) -> AsyncIterator[Client]:
    port = free_port()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(gateway_on(config, "127.0.0.1", port))
        client = kind(f"http://127.0.0.1:{port}", **options)
        stack.push_async_callback(client.close)
        yield client


# One interface


PARTS = (
    "alerts",
    "api_keys",
    "bulk",
    "channels",
    "dead_letters",
    "deliveries",
    "events",
    "executions",
    "flows",
    "limits",
    "schedules",
    "secrets",
    "variables",
)


@pytest.mark.parametrize("part", ["", *PARTS])
async def test_both_clients_have_the_same_calls(part: str) -> None:
    blocking: Any = PyocoHttpClient("http://127.0.0.1:1")
    async with AsyncPyocoHttpClient("http://127.0.0.1:1") as client:
        ours, theirs = (_found(c, part) if part else c for c in (blocking, client))
        names = {name for name in dir(theirs) if not name.startswith("_")}
        assert names == {name for name in dir(ours) if not name.startswith("_")}
        for name in names.difference(PARTS):
            ours_called, theirs_called = getattr(ours, name), getattr(theirs, name)
            assert inspect.signature(ours_called) == inspect.signature(theirs_called)
            assert ours_called.__doc__ == theirs_called.__doc__
            assert inspect.iscoroutinefunction(theirs_called) or inspect.isasyncgenfunction(theirs_called)
            assert not inspect.iscoroutinefunction(ours_called)
            assert not inspect.isasyncgenfunction(ours_called)
    blocking.close()


@both
async def test_ended_runs_are_counted(kind: Any, config: NatsBackendConfig) -> None:
    async with served(kind, config) as client:

        async def cancelled_run() -> str:
            run_id: str = (await client.call("submit_run", "etl", tag="nobody"))["run_id"]
            await client.call("cancel_run", run_id)
            return run_id

        async def counts() -> dict[str, int]:
            since = time.time() - 3600
            found = await client.call("stats", "flow", "hour", since=since, status="CANCELLED")
            return {one["key"]: sum(point["count"] for point in one["points"]) for one in found["series"]}

        await cancelled_run()
        await until(counts)
        await client.call("delete_run", await cancelled_run())  # waits until it is counted
        assert await until(counts, lambda found: found != {"etl": 1}) == {"etl": 2}


@both
async def test_administrators_manage_keys_and_read_the_audit_trail(
    kind: Any, config: NatsBackendConfig
) -> None:
    secured = replace(config, http_auth_mode="api_key")
    async with open_backend(secured, name="test") as backend:
        key = (await new_key(backend.api_keys, "acme", "admin", "admin"))["X-API-Key"]
    async with served(kind, secured, api_key=key) as client:
        expires_at = datetime(2099, 1, 1, tzinfo=UTC)
        created = await client.call("api_keys.create", ["read"], expires_at=expires_at, description="page")
        assert created["expires_at"] == expires_at.timestamp()
        page = await client.call("api_keys.list", limit=1)
        assert [one["key_id"] for one in page["items"]] == [created["key_id"]]
        assert (await client.call("api_keys.list", page["next_cursor"]))["items"][0]["key_id"] == "admin"
        assert (await client.call("api_keys.revoke", created["key_id"]))["revoked_at"] is not None
        trail = await client.call("list_audit", target="api_key", key_id="admin", since=0.0)
        assert [entry["action"] for entry in trail["items"]] == ["api_key.revoke", "api_key.create"]
        with pytest.raises(NotAllowed) as refused:
            await client.call("submit_run", "flow")
        assert (refused.value.err_id, "submit" in str(refused.value.detail)) == ("ERR-PYOCO-0060", True)


@both
async def test_runs_are_submitted_watched_and_read(kind: Any, labs: Callable[..., Any]) -> None:
    lab: Lab = await labs()
    async with lab.worker(), served(kind, lab.config) as client:
        batch = await client.call("submit_runs", [{"flow_name": "tiny"}, {"flow_name": "tiny"}])
        assert batch["accepted"] == 2
        run_id = (await client.call("submit_run", "talking", {"marks": str(lab.marks)}))["run_id"]
        lab.let("go")
        events = await client.items("watch_run", run_id, records=True)
        assert events[-1]["snapshot"]["status"] == "COMPLETED"
        followed = await client.items("follow_logs", run_id)
        assert followed == await client.call("get_logs", run_id) != []
        assert (await client.call("get_logs", run_id, limit=1)) == followed[-1:]
        assert await client.items("follow_logs", run_id, tail=1) == followed[-1:]
        run = await client.call("get_run_with_records", run_id)
        assert (await client.call("get_tasks", run_id))["task_records"] == run["task_records"]
        page = await client.call("list_runs_vnext", limit=1)
        assert len(page["items"]) == 1
        assert page["next_cursor"]
        assert run_id in [item["run_id"] for item in await client.call("list_runs", flow="talking")]
        assert [worker["worker_id"] for worker in await client.call("get_workers")] == ["w1"]
        assert "pyoco_runs_total" in await client.call("get_metrics")
        assert (await client.call("get_health"))["status"] == "ok"


YAML = 'flow: {graph: "a"}\ntasks: {a: {callable: "mine:a"}}\n'
GRAPH = {"id": "pause", "nodes": {"ask": {"type": "wait"}}, "edges": []}


@both
async def test_files_executions_and_events(kind: Any, config: NatsBackendConfig, tmp_path: Path) -> None:
    wheel, flow = tmp_path / wheel_name(), tmp_path / "flow.yaml"
    wheel.write_bytes(a_wheel())
    flow.write_text(YAML)
    async with served(kind, config) as client:
        uploaded = await client.call("upload_wheel", wheel, ["cpu"])
        assert [item["name"] for item in await client.call("list_wheels")] == [uploaded["name"]]
        (tmp_path / "down").mkdir()
        saved = await client.call("download_wheel", wheel.name, tmp_path / "down")
        assert saved.read_bytes() == wheel.read_bytes()
        assert (await client.call("delete_wheel", wheel.name))["deleted"] is True
        assert len(await client.call("list_wheel_history")) == 2
        submitted = await client.call("submit_run_yaml", flow, "gpu")
        assert (await client.call("get_run", submitted["run_id"]))["tag"] == "gpu"

        assert (await client.call("put_graph", "pause", GRAPH))["version"] == 1
        created = await client.call("executions.create", "pause")
        execution_id = created["execution_id"]
        await until(
            lambda: client.call("executions.get", execution_id),
            lambda found: found["nodes"]["ask"]["status"] == "WAITING",
        )
        await client.call("executions.resume", execution_id, "ask", {"yes": True})
        types = [event["type"] for event in await client.items("executions.watch", execution_id)]
        assert types[-1] == "EXECUTION_COMPLETED"

        await client.call("events.put_action", "a", {"flow_name": "tiny"})
        assert [action["key"] for action in await client.call("events.list_actions")] == ["a"]


@both
async def test_schedules_with_every_call(kind: Any, config: NatsBackendConfig) -> None:
    starts_at = datetime.now(UTC) - timedelta(minutes=3)
    async with served(kind, config) as client:
        plan = await client.call("schedules.preview_unsaved", cron="@daily", timezone="Asia/Tokyo", n=2)
        assert (plan["timezone"], len(plan["items"])) == ("Asia/Tokyo", 2)
        fields = {"every_sec": 60, "starts_at": starts_at, "overlap": "allow", "description": "d"}
        made = await client.call("schedules.put", "s", {"flow": "tiny", "params": {"x": 1}}, **fields)
        assert (made["id"], made["starts_at"]) == ("s", pytest.approx(starts_at.timestamp()))
        assert [one["id"] for one in (await client.call("schedules.list"))["items"]] == ["s"]
        assert len((await client.call("schedules.preview", "s", 3))["items"]) == 3
        assert (await client.call("schedules.pause", "s", "why"))["paused_reason"] == "why"
        run_id = (await client.call("schedules.trigger", "s"))["run_id"]
        assert (await client.call("get_run", run_id))["schedule_id"] == "s"
        assert not (await client.call("schedules.resume", "s"))["paused"]
        period = (starts_at, starts_at + timedelta(seconds=61))
        dry = await client.call("schedules.backfill", "s", *period, dry_run=True)
        assert len(dry["items"]) == 2
        assert (await client.call("schedules.backfill", "s", *period))["items"] == dry["items"]
        ticks = (await client.call("schedules.ticks", "s", limit=200))["items"]
        assert {tick["due_at"] for tick in dry["items"]} < {tick["due_at"] for tick in ticks}
        assert (await client.call("schedules.get", "s"))["last_tick"]["status"] == "STARTED"
        assert (await client.call("schedules.delete", "s"))["deleted"]
        with pytest.raises(NotFound):
            await client.call("schedules.get", "s")


@both
async def test_flows_have_settings(kind: Any, config: NatsBackendConfig) -> None:
    async with served(kind, config) as client:
        await client.call("flows.put", "a/b", timeout_sec=60, retry={"max_attempts": 2}, owner="me")
        found = await client.call("flows.change", "a/b", {"timeout_sec": 5, "owner": None}, unset=["retry"])
        assert (found["timeout_sec"], found["retry"], found["owner"]) == (5, None, "me")
        assert await client.call("flows.get", "a/b") == found
        (listed,) = (await client.call("flows.list", limit=1))["items"]
        assert listed["name"] == "a/b"
        replaced = await client.call("flows.change", "a/b", {}, replaced={"name": "x", "owner": "you"})
        assert (replaced["name"], replaced["timeout_sec"], replaced["owner"]) == ("a/b", None, "you")
        with pytest.raises(ValueError, match="retries: not a setting of a flow; choose from retry"):
            await client.call("flows.change", "a/b", {}, unset=["retries"])
        with pytest.raises(InvalidRequest, match=r"params_schema\.type"):
            await client.call("flows.put", "a/b", params_schema={"type": "text"})
        assert (await client.call("flows.put", "a/b"))["updated_at"] is None
        with pytest.raises(NotFound):
            await client.call("flows.get", "a/b")
        assert (await client.call("flows.change", "new", {"owner": "me"}))["owner"] == "me"


@both
async def test_definitions_are_applied_once(kind: Any, config: NatsBackendConfig, tmp_path: Path) -> None:
    task = {"type": "task", "flow": "tiny", "timeout_sec": 60}
    wait = {"type": "wait", "on_timeout": "fail"}  # a default, which is not stored
    graph = {"nodes": {"a": task, "ask": wait}, "edges": [{"from": "a", "to": "ask"}]}
    step = {"id": "one", "action": "close", "trigger_kind": "scheduled"}
    retry = {"max_attempts": 3}
    target = {"flow": "tiny", "retry": retry}
    found = {
        "flows/tiny.json": {"retry": {**retry}, "timeout_sec": 60, "params_schema": {"type": "object"}},
        "graphs/g.json": graph,
        "actions/close.json": {"graph_id": "g", "params": {"x": 1}},
        "templates/t.json": {"name": "T", "steps": [step]},
        "schedules/by-template.json": {"target": {"template": "t"}, "cron": "@daily"},
        "schedules/by-flow.json": {"target": target, "every_sec": 60, "starts_at": "2030-01-01T00:00+09:00"},
    }
    for name, body in found.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(body))

    def documents() -> list[Document]:
        return documents_in(tmp_path, (".json",), lambda path: json.loads(path.read_text()))

    async with served(kind, config) as client:
        dry = [await client.call("apply", one, dry_run=True) for one in documents()]
        assert [one["change"] for one in dry] == ["create"] * 6
        assert [await client.call("apply", one) for one in documents()] == dry
        again = [await client.call("apply", one) for one in documents()]
        assert [(one["change"], one["fields"]) for one in again] == [("none", {})] * 6
        (tmp_path / "flows/tiny.json").write_text('{"name": "tiny", "timeout_sec": 60, "owner": "me"}')
        (changed, *_) = documents()
        assert set((await client.call("apply", changed))["fields"]) == {"retry", "params_schema", "owner"}
        assert (await client.call("flows.get", "tiny"))["retry"] is None
        retry["max_attempts"] = 4
        (tmp_path / "schedules/by-flow.json").write_text(json.dumps({"target": target, "cron": "@daily"}))
        (changed, *_) = [one for one in documents() if one.id == "by-flow"]
        fields = (await client.call("apply", changed))["fields"]
        assert set(fields) == {"target", "cron", "every_sec", "starts_at"}
        assert (await client.call("schedules.get", "by-flow"))["target"]["retry"]["max_attempts"] == 4


@both
@pytest.mark.parametrize(
    ("folder", "body", "problem"),
    [
        ("schedules", {"target": {"flow": "f"}, "crno": "@daily"}, "did you mean 'cron'"),
        ("schedules", {"target": {"flow": "f"}, "cron": "0 0 30 2 *"}, "never matches"),
        ("graphs", {"nodes": {"a": {"type": "tsak", "flow": "f"}}}, "tsak"),
    ],
)
async def test_a_definition_that_cannot_be_applied_is_refused_without_writing_too(
    kind: Any, config: NatsBackendConfig, folder: str, body: dict[str, Any], problem: str
) -> None:
    async with served(kind, config) as client:
        for dry_run in (True, False):
            with pytest.raises(InvalidRequest, match=problem):
                await client.call("apply", Document(folder, "bad", body, Path("bad.json")), dry_run=dry_run)


# `run`


@both
async def test_run_returns_the_result_or_raises_what_became_of_the_run(
    kind: Any, labs: Callable[..., Any]
) -> None:
    lab: Lab = await labs(max_run_snapshot_bytes=65_536)
    async with lab.worker(), served(kind, lab.config) as client:
        result = await client.call("run", "tiny")
        (run,) = await client.call("list_runs", full=True)
        assert run["status"] == "COMPLETED"
        assert result == run["result"]
        assert result is not None

        with pytest.raises(RunFailed, match="TypeError") as failed:
            await client.call("run", "tiny", {"pause": "long"})
        stored = await client.call("get_run", failed.value.run_id)
        assert (stored["status"], stored["error"]) == ("FAILED", failed.value.detail)
        assert failed.value.err_id == "ERR-PYOCO-0007"
        assert failed.value.advice

        with pytest.raises(ResultNotStored) as lost:
            await client.call("run", "too_large")
        assert (await client.call("get_run", lost.value.run_id))["status"] == "COMPLETED"

        wanted = asyncio.ensure_future(client.call("run", "watchful", {"marks": str(lab.marks)}))
        await lab.reached("in-watch")
        (active,) = await client.call("list_runs", status="RUNNING")
        await client.call("cancel_run", active["run_id"], reason="not needed")
        with pytest.raises(RunCancelled, match="not needed") as cancelled:
            await wanted
        assert cancelled.value.run_id == active["run_id"]


@both
async def test_a_run_that_takes_too_long_goes_on(kind: Any, labs: Callable[..., Any]) -> None:
    lab: Lab = await labs()
    async with lab.worker(), served(kind, lab.config) as client:
        with pytest.raises(RunTimedOut, match=r"has not ended after 0\.5 s") as late:
            await client.call("run", "steps", {"marks": str(lab.marks)}, timeout=0.5)
        assert isinstance(late.value, TimeoutError)
        lab.let("go")
        assert (await lab.ended(late.value.run_id))["status"] == "COMPLETED"


@both
async def test_a_run_is_followed_again_after_an_interruption(kind: Any, labs: Callable[..., Any]) -> None:
    lab: Lab = await labs()
    port = free_port()
    async with (
        lab.worker(),
        gateway_on(lab.config, "127.0.0.1", port),
        silent_proxy(port) as proxy,
    ):
        client = kind(f"http://127.0.0.1:{proxy.port}")
        result = asyncio.ensure_future(client.call("run", "steps", {"marks": str(lab.marks)}))
        await lab.reached("in-first")
        for _ in range(2):
            before = proxy.connections
            proxy.interrupt()
            await until(lambda: _connections(proxy), partial(lt, before))
        lab.let("go")
        assert await result == (await lab.run((await client.call("list_runs"))[0]["run_id"]))["result"]
        await client.close()


async def _connections(proxy: Any) -> int:
    count: int = proxy.connections
    return count


@both
async def test_a_run_whose_answer_is_lost_is_not_submitted_twice(kind: Any, labs: Callable[..., Any]) -> None:
    lab: Lab = await labs()
    port = free_port()
    async with (
        lab.worker(),
        gateway_on(lab.config, "127.0.0.1", port),
        silent_proxy(port) as proxy,
    ):
        client = kind(f"http://127.0.0.1:{proxy.port}")
        proxy.loses_next_answer = True
        await client.call("run", "tiny")
        assert proxy.loses_next_answer is False
        assert len(await client.call("list_runs")) == 1
        await client.close()


# Errors


@both
async def test_errors_have_a_type_and_the_servers_words(kind: Any, config: NatsBackendConfig) -> None:
    async with served(kind, config) as client:
        await client.call("put_graph", "pause", GRAPH)
        execution_id = (await client.call("executions.create", "pause"))["execution_id"]
        await client.call("executions.cancel", execution_id)
        expected: list[tuple[type[PyocoError], int, str, Any]] = [
            (RunNotFound, 404, "ERR-PYOCO-0005", client.call("get_run", RUN_ID)),
            (RunNotFound, 404, "ERR-PYOCO-0005", client.items("watch_run", RUN_ID)),
            (NotFound, 404, "ERR-PYOCO-0034", client.call("get_graph", "nothing")),
            (InvalidRequest, 422, "ERR-PYOCO-0002", client.call("submit_run", "")),
            (InvalidRequest, 422, "ERR-PYOCO-0002", client.call("submit_run", "a", {"x": object()})),
            (
                Conflict,
                409,
                "ERR-PYOCO-0033",
                client.call("executions.command", execution_id, "ResumeNode", node_id="ask"),
            ),
        ]
        for error, status, err_id, call in expected:
            with pytest.raises(error) as caught:
                await call
            assert (caught.value.status, caught.value.err_id) == (status, err_id)
            assert caught.value.detail
            assert caught.value.advice == error.advice
            assert "[{" not in str(caught.value)
            assert type(caught.value).__name__ == error.__name__


@both
async def test_a_missing_key_is_not_allowed(kind: Any, config: NatsBackendConfig) -> None:
    closed = replace(config, http_auth_mode="api_key")
    for options in ({}, {"api_key": "pyoco_wrong_key"}):
        async with served(kind, closed, **options) as client:
            with pytest.raises(NotAllowed) as caught:
                await client.call("list_runs")
            assert caught.value.err_id in ("ERR-PYOCO-0014", "ERR-PYOCO-0015")


@both
async def test_older_programs_catch_the_errors_of_httpx(kind: Any, config: NatsBackendConfig) -> None:
    async with served(kind, config) as client:
        for older in (httpx.HTTPStatusError, httpx2.HTTPStatusError):
            with pytest.raises(older) as caught:
                await client.call("get_run", RUN_ID)
            assert isinstance(caught.value, RunNotFound)
            error: Any = caught.value
            assert (error.response.status_code, error.request.method) == (404, "GET")
        with pytest.raises(catalogue.InvalidRequest):
            await client.call("submit_run", "a", {"x": object()})


@both
async def test_a_server_that_is_not_there_is_unavailable(kind: Any) -> None:
    client = kind(f"http://127.0.0.1:{free_port()}")
    for kind_of_error in (ServerUnavailable, catalogue.GatewayUnreachable, httpx2.ConnectError):
        with pytest.raises(kind_of_error) as caught:
            await client.call("submit_run", "tiny")
        error: Any = caught.value
        assert (error.status, error.err_id) == (None, "ERR-PYOCO-0001")
    await client.close()


def test_an_error_reaches_another_process() -> None:
    with PyocoHttpClient(f"http://127.0.0.1:{free_port()}") as client:
        with pytest.raises(ServerUnavailable) as caught:
            client.submit_run("tiny")
        copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert type(copied) is ServerUnavailable
    assert (str(copied), copied.err_id, copied.advice) == (
        str(caught.value),
        caught.value.err_id,
        caught.value.advice,
    )


def test_what_is_left_early_is_closed(config: NatsBackendConfig) -> None:
    """A watch that its program leaves gives its connection back at once."""

    async def left() -> None:
        port = free_port()
        async with gateway_on(config, "127.0.0.1", port), silent_proxy(port) as proxy:
            url = f"http://127.0.0.1:{proxy.port}"

            def watch_and_leave() -> None:
                with PyocoHttpClient(url) as client:
                    run_id = client.submit_run("nobody")["run_id"]
                    for _ in client.watch_run(run_id):
                        break

            await asyncio.to_thread(watch_and_leave)
            async with AsyncPyocoHttpClient(url) as client:
                run_id = (await client.submit_run("nobody"))["run_id"]
                async with aclosing(client.watch_run(run_id)) as events:
                    async for _ in events:
                        break
            await until(lambda: _open(proxy), lambda count: count == 0)

    asyncio.run(left())


async def _open(proxy: Any) -> int:
    return sum(not pump.done() for pump in proxy._pumps)
