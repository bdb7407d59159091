"""Executions on the real parts: nodes as runs on a worker, JetStream as the log, gateways side by side."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from nats.js.errors import NotFoundError
from pyoco import Flow, task as pyoco_task

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import create_app
from pyoco_server.wiring import EmbeddedNats, open_backend
from support import flows
from support.gateway import gateway, new_key, running
from support.http_executions import Executions, attempts_in, fork_of, graph, task
from support.nats_server import jobs_waiting, raw_nats, unique_config
from support.waiting import until
from support.watching import stream
from support.workers import worker

EXTERNAL: dict[str, Any] = {"type": "task", "external": True}
WAIT: dict[str, Any] = {"type": "wait", "prompt": "go on?"}


@asynccontextmanager
async def opened(config: NatsBackendConfig) -> AsyncIterator[Executions]:
    """A gateway that has taken over."""
    async with gateway(config) as client:
        await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
        yield Executions(client)


@asynccontextmanager
async def working(config: NatsBackendConfig, **made: Any) -> AsyncIterator[None]:
    known = {"chain": flows.chain, "failing": flows.failing, **made}
    async with worker(config, known) as instance:
        running_worker = asyncio.ensure_future(instance.run())
        yield
        instance.stop()
        await running_worker


async def run_of(executions: Executions, execution_id: str, node_id: str) -> dict[str, Any]:
    node = (await executions.get(execution_id))["nodes"][node_id]
    answer = await executions.http.get(f"/runs/{node['run_id']}")
    assert answer.status_code == 200, answer.text
    run: dict[str, Any] = answer.json()
    return run


# Task nodes are runs


async def test_what_a_run_gave_is_what_the_next_one_gets(config: NatsBackendConfig) -> None:
    definition = graph(
        {
            "a": task(params={"n": "${input.n}"}),
            "b": task(params={"n": "${nodes.a.output.total}"}),
        },
        "a b",
    )
    async with opened(config) as executions, working(config):
        await executions.register("sums", definition)
        await executions.create("sums", execution_id="e", input={"n": 2})
        ended = await executions.until_ended("e")
        assert (ended["status"], ended["result"]) == ("COMPLETED", {"b": {"total": 55}})
        assert ended["nodes"]["a"]["output"] == {"total": 5}
        for node_id, n in (("a", 2), ("b", 5)):
            run = await run_of(executions, "e", node_id)
            assert (run["execution_id"], run["node_id"], run["params"]) == ("e", node_id, {"n": n})
            assert run["status"] == "COMPLETED"
    assert await jobs_waiting(config) == 0


async def test_a_failed_run_is_tried_again_as_another_run(config: NatsBackendConfig) -> None:
    retried = {"only": task("failing", retry={"max_attempts": 3, "backoff_sec": 0.1})}
    async with opened(config) as executions, working(config):
        await executions.register("g", graph(retried))
        await executions.create("g", execution_id="e")
        ended = await executions.until_ended("e")
        assert (ended["status"], ended["error"]["code"]) == ("FAILED", "RUN_FAILED")
        assert "broken on purpose" in ended["error"]["message"]
        events = await executions.events("e")
    started = [event["payload"]["run_id"] for event in events if event["type"] == "NODE_STARTED"]
    assert len(set(started)) == 3
    reports = [event for event in events if event["type"] == "NODE_FAIL_REPORTED"]
    waits = [event["payload"].get("retry_at", 0) - event["occurred_at"] for event in reports]
    assert [round(wait, 1) for wait in waits[:2]] == [0.1, 0.2]
    assert [event["payload"]["attempt"] for event in reports] == [1, 2, 3]


async def test_a_run_that_somebody_cancels_fails_its_node(config: NatsBackendConfig) -> None:
    async with opened(config) as executions:
        await executions.register("g", graph({"only": task()}))
        await executions.create("g", execution_id="e")
        state = await executions.until_node("e", "only", "RUNNING")
        run_id = state["nodes"]["only"]["run_id"]
        await until(lambda: executions.http.get(f"/runs/{run_id}"), lambda answer: answer.status_code == 200)
        assert (await executions.http.post(f"/runs/{run_id}/cancel")).status_code == 200
        ended = await executions.until_ended("e")
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", "RUN_CANCELLED")


async def test_where_a_run_stands_is_shown_beside_its_node(config: NatsBackendConfig) -> None:
    gate = flows.Gate()
    async with opened(config) as executions:
        await executions.register("g", graph({"only": task("gated")}))
        await executions.create("g", execution_id="e")
        await until(
            lambda: executions.get("e"), lambda state: state["nodes"]["only"]["run_status"] == "PENDING"
        )
        async with working(config, gated=gate.flow):
            await until(
                lambda: executions.get("e"), lambda state: state["nodes"]["only"]["run_status"] == "RUNNING"
            )
            gate.open()
            ended = await executions.until_ended("e")
    assert (ended["status"], ended["nodes"]["only"]["run_status"]) == ("COMPLETED", None)


async def test_a_task_that_takes_too_long_loses_its_run(config: NatsBackendConfig) -> None:
    slow = {"only": task(tag="nobody", timeout_sec=0.3, retry={"max_attempts": 2})}
    async with opened(config) as executions:
        await executions.register("g", graph(slow))
        await executions.create("g", execution_id="e")
        ended = await executions.until_ended("e")
        assert (ended["status"], ended["error"]["code"]) == ("FAILED", "TIMEOUT")
        events = await executions.events("e")
        for event in events:
            if event["type"] == "NODE_STARTED":
                path = f"/runs/{event['payload']['run_id']}"
                await until(
                    partial(executions.http.get, path),
                    lambda answer: answer.json().get("status") == "CANCELLED",
                )
    assert attempts_in(events) == {("only", None, 1): 1, ("only", None, 2): 1}


async def test_a_node_goes_to_the_workers_of_its_tag(config: NatsBackendConfig) -> None:
    async with opened(config) as executions, worker(config, {"chain": flows.chain}, tags=["gpu"]) as gpu:
        await executions.register("g", graph({"a": task(tag="gpu"), "b": task()}, "a b"))
        await executions.create("g", execution_id="e")
        await executions.until_node("e", "a", "RUNNING")
        assert await gpu.run_once(30) is not None
        await executions.until_node("e", "b", "RUNNING")
        assert (await run_of(executions, "e", "a"))["tag"] == "gpu"
        await until(lambda: jobs_waiting(config), lambda count: count == 1)
        assert (await run_of(executions, "e", "b"))["tag"] == config.default_tag


async def test_a_run_belongs_to_the_tenant_of_its_execution(nats_server: EmbeddedNats) -> None:
    config = unique_config(nats_server.url, http_auth_mode="api_key")
    async with opened(config) as executions, open_backend(config, "keys") as backend:
        ours = await new_key(backend.api_keys, "acme", "key-a")
        theirs = await new_key(backend.api_keys, "other", "key-b")

        async def ask(method: str, path: str, who: dict[str, str], **body: Any) -> Any:
            return await executions.http.request(method, path, headers=who, json=body or None)

        await until(lambda: ask("GET", "/executions", ours), lambda answer: answer.status_code == 200)
        await until(lambda: ask("GET", "/executions", theirs), lambda answer: answer.status_code == 200)
        assert (await ask("PUT", "/graphs/g", ours, **graph({"only": task()}))).status_code in (200, 201)
        created = await ask("POST", "/executions", ours, graph_id="g", execution_id="e")
        assert (created.status_code, created.json()["tenant_id"]) == (201, "acme")
        state = await until(
            lambda: ask("GET", "/executions/e", ours),
            lambda answer: answer.json()["nodes"]["only"]["status"] == "RUNNING",
        )
        path = f"/runs/{state.json()['nodes']['only']['run_id']}"
        run = await until(lambda: ask("GET", path, ours), lambda answer: answer.status_code == 200)
        assert (run.json()["tenant_id"], run.json()["api_key_id"]) == ("acme", "key-a")
        for hidden in (path, "/executions/e", "/executions/e/events", "/graphs/g"):
            assert (await ask("GET", hidden, theirs)).status_code == 404
        assert (await ask("POST", "/executions/e/cancel", theirs)).status_code == 404
        assert (await ask("POST", "/executions", theirs, graph_id="g")).status_code == 404
        assert (await ask("GET", "/executions", theirs)).json()["items"] == []


# Cancel


async def test_a_cancel_needs_no_worker(config: NatsBackendConfig) -> None:
    """F7: the run is PENDING and stays alone with its job."""
    async with opened(config) as executions:
        await executions.register("g", fork_of())
        await executions.create("g", execution_id="e")
        await executions.until_node("e", "first", "RUNNING")
        await executions.post("/executions/e/cancel", reason="enough")
        ended = await executions.until_ended("e")
        assert (ended["status"], ended["cancel_reason"]) == ("CANCELED", "enough")
        assert {node["status"] for node in ended["nodes"].values()} == {"CANCELED"}
        run = await run_of(executions, "e", "first")
        assert (run["status"], run["cancel_requested_by"]) == ("CANCELLED", "execution:e")


async def test_a_cancel_converges_while_a_node_waits(config: NatsBackendConfig) -> None:
    async with opened(config) as executions:
        await executions.register("g", graph({"ask": WAIT, "then": EXTERNAL}, "ask then"))
        await executions.create("g", execution_id="e")
        await executions.until_node("e", "ask", "WAITING")
        state = await executions.post("/executions/e/cancel")
        assert (state["status"], state["nodes"]["ask"]["status"]) == ("CANCELED", "CANCELED")
        refused = await executions.node("e", "ask", "resume", 409, data={"ok": True})
        assert refused["code"] == "EXECUTION_TERMINAL"
        assert (await executions.http.get("/waits")).json()["items"] == []


async def test_a_cancelled_execution_is_not_revived_by_its_id(config: NatsBackendConfig) -> None:
    async with opened(config) as executions:
        await executions.register("g", graph({"ask": WAIT}))
        await executions.create("g", execution_id="e")
        await executions.post("/executions/e/cancel")
        for key in (None, "k"):
            headers = {} if key is None else {"Idempotency-Key": key}
            refused = await executions.post("/executions", 409, headers, graph_id="g", execution_id="e")
            assert refused["code"] == "EXECUTION_EXISTS"
        refused = await executions.post(
            "/executions/e/commands", 409, command="CreateExecution", graph_id="g"
        )
        assert refused["code"] == "EXECUTION_EXISTS"
        assert (await executions.get("e"))["status"] == "CANCELED"


# A log of 200 nodes, by hand


@pytest.mark.slow
async def test_two_hundred_nodes_by_an_outside_worker(config: NatsBackendConfig) -> None:
    names = [f"n{number:03}" for number in range(200)]
    async with opened(config) as executions:
        await executions.register("g", graph(dict.fromkeys(names, EXTERNAL), " ".join(names)))
        await executions.create("g", execution_id="e")
        for name in names:
            await executions.until_node("e", name, "READY")
            await executions.node("e", name, "start", worker_id="robot")
            await executions.node("e", name, "succeed", worker_id="robot", output=name)
        ended = await executions.until_ended("e")
        assert (ended["status"], ended["result"]) == ("COMPLETED", {"n199": "n199"})
        assert {node["status"] for node in ended["nodes"].values()} == {"SUCCEEDED"}
        sequences = [event["sequence"] for event in await executions.events("e")]
    assert sequences == list(range(1, ended["version"] + 1))


# Watching


async def test_every_event_is_watched_once_through_another_gateway(config: NatsBackendConfig) -> None:
    other_app = create_app(config)
    async with opened(config) as executions, running(other_app) as other:
        await until(lambda: other.get("/ready"), lambda answer: answer.status_code == 200)
        await executions.register("g", graph({"a": EXTERNAL, "ask": WAIT}, "a ask"))
        await executions.create("g", execution_id="e")
        seen: list[tuple[str, int, str | None]] = []
        async with stream(other_app, "/executions/e/watch") as first:
            while len(seen) < 4:
                event = await first.next()
                seen.append((event.name, event.data["sequence"], event.id))
            await first.next("heartbeat")
        await executions.until_node("e", "a", "READY")
        await executions.node("e", "a", "start")
        async with stream(other_app, "/executions/e/watch", last_event_id=seen[-1][2] or "") as second:
            await executions.node("e", "a", "succeed")
            await executions.until_node("e", "ask", "WAITING")
            await executions.node("e", "ask", "resume")
            events = [event for event in await second.rest() if event.name != "heartbeat"]
        seen += [(event.name, event.data["sequence"], event.id) for event in events]
        logged = await executions.events("e")
    assert seen == [(event["type"], event["sequence"], str(event["sequence"])) for event in logged]
    assert seen[-1][0] == "EXECUTION_COMPLETED"


async def test_too_many_watchers_are_sent_away_and_a_stop_ends_the_others(
    nats_server: EmbeddedNats,
) -> None:
    config = unique_config(nats_server.url, max_watchers=1)
    app = create_app(config)
    async with running(app) as client:
        executions = Executions(client)
        await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
        await executions.register("g", graph({"ask": WAIT}))
        await executions.create("g", execution_id="e")
        async with stream(app, "/executions/e/watch") as watching:
            await watching.next()
            async with stream(app, "/executions/e/watch") as refused:
                assert refused.status == 503
                assert json.loads(await refused.text())["err_id"] == "ERR-PYOCO-0003"
            app.state.gateway.begin_stop()
            await watching.rest()


# Two gateways, restarts, outages


async def test_commands_go_through_two_gateways_alternately(config: NatsBackendConfig) -> None:
    names = [f"n{number}" for number in range(8)]
    async with opened(config) as one, opened(config) as other:
        await one.register("g", graph(dict.fromkeys(names, EXTERNAL), " ".join(names)))
        await one.create("g", execution_id="e")
        for number, name in enumerate(names):
            starting, ending = (one, other) if number % 2 else (other, one)
            await starting.until_node("e", name, "READY")
            await starting.node("e", name, "start", worker_id="w")
            await ending.node("e", name, "succeed", worker_id="w", output=number)
        for executions in (one, other):
            assert (await executions.until_ended("e"))["result"] == {"n7": 7}


async def attended(executions: Executions) -> float:
    """How often this gateway has evaluated an execution."""
    lines = (await executions.http.get("/metrics")).text.splitlines()
    name = "pyoco_orchestrator_lag_seconds_count "
    return float(next(line for line in lines if line.startswith(name)).removeprefix(name))


async def test_gateways_share_the_executions_whichever_accepts_them(config: NatsBackendConfig) -> None:
    """And the one that stays takes over those of one that goes."""
    async with opened(config) as one, working(config):
        await one.register("g", fork_of())
        async with opened(config) as two:
            await until(lambda: shares(config), lambda beats: len(beats) == 2)
            for number in range(20):
                await one.create("g", execution_id=f"e{number}")
            for number in range(20):
                assert (await one.until_ended(f"e{number}"))["status"] == "COMPLETED"
            assert min(await attended(one), await attended(two)) > 10
            await two.register("waiting", graph({"a": EXTERNAL, "b": EXTERNAL}, "a b"))
            for number in range(10):
                await two.create("waiting", execution_id=f"w{number}")
        for number in range(10):
            await one.until_node(f"w{number}", "a", "READY")
            await one.node(f"w{number}", "a", "start")
            await one.node(f"w{number}", "a", "succeed")
            await one.until_node(f"w{number}", "b", "READY")


async def shares(config: NatsBackendConfig) -> dict[str, int]:
    async with raw_nats(config.nats_url) as client:
        bucket = await client.jetstream().key_value(config.leases_kv_bucket)
        found = await bucket.get("orchestrators")
        return dict(json.loads(found.value or b"{}")["beats"])


async def test_a_key_is_of_one_execution_and_one_answer_through_any_gateway(
    config: NatsBackendConfig,
) -> None:
    key = {"Idempotency-Key": "k" * 255}
    async with opened(config) as one, opened(config) as other:
        await one.register("g", graph({"a": EXTERNAL}))
        body: dict[str, Any] = {"graph_id": "g", "input": {"x": 1}}
        first = await one.post("/executions", 201, key, **body)
        assert await other.post("/executions", 201, key, **body) == first
        assert (await other.post("/executions", 409, key, graph_id="g"))["code"] == "IDEMPOTENCY_KEY_REUSED"
        e1, e2 = first["execution_id"], (await one.create("g"))["execution_id"]
        answers = []
        for execution_id in (e1, e2):
            await one.until_node(execution_id, "a", "READY")
            answers.append(await one.node(execution_id, "a", "start", headers=key))
            await other.node(execution_id, "a", "succeed")
            ended = await other.until_ended(execution_id)
            again = await other.node(execution_id, "a", "start", headers=key)
            assert (again, ended["status"]) == (answers[-1], "COMPLETED")
        assert [answer["execution_id"] for answer in answers] == [e1, e2]
        reruns = [await one.post(f"/executions/{e}/rerun", 201, key) for e in (e1, e2, e1)]
        assert [rerun["rerun_of"] for rerun in reruns] == [e1, e2, e1]
        assert reruns[0]["execution_id"] == reruns[2]["execution_id"] != reruns[1]["execution_id"]


async def test_a_state_at_an_earlier_event_is_the_same_by_any_way(config: NatsBackendConfig) -> None:
    async with opened(config) as one, opened(config) as other:
        await one.register("g", graph({"a": EXTERNAL, "ask": WAIT}, "a ask"))
        await one.create("g", execution_id="e")
        known = {}
        for step in ("start", "progress", "succeed"):
            await one.until_node("e", "a", "READY" if step == "start" else "RUNNING")
            state = await one.node("e", "a", step)
            known[state["version"]] = state
        await one.until_node("e", "ask", "WAITING")
        for version, state in known.items():
            for executions in (one, other):
                assert await executions.get("e", at_sequence=version) == state
        last = (await one.get("e"))["version"]
        assert (await other.get("e", at_sequence=last))["version"] == last
        answer = await other.http.get("/executions/e", params={"at_sequence": last + 1})
        assert (answer.status_code, str(last) in answer.text) == (422, True)


async def test_timers_go_on_in_the_next_gateway(config: NatsBackendConfig) -> None:
    definition = graph(
        {
            "start": EXTERNAL,
            "split": {"type": "fork"},
            "slow": task(tag="nobody", timeout_sec=1.5),
            "patient": {"type": "wait", "timeout_sec": 1.5, "on_timeout": "succeed"},
            "again": {"type": "task", "external": True, "retry": {"max_attempts": 2, "backoff_sec": 1.5}},
            "all": {"type": "join", "policy": "ALL_DONE"},
        },
        "start split slow all",
        "split patient all",
        "split again all",
    )
    async with opened(config) as executions:
        await executions.register("g", definition)
        await executions.create("g", execution_id="e")
        await executions.until_node("e", "start", "READY")
        await executions.node("e", "start", "start")
        await executions.node("e", "start", "succeed")
        await executions.until_node("e", "patient", "WAITING")
        await executions.node("e", "again", "start")
        await executions.node("e", "again", "fail", error="once")
        assert (await executions.node("e", "again", "start", 409))["code"] == "RETRY_NOT_DUE"
    async with opened(config) as executions:
        state = await executions.until_node("e", "slow", "FAILED")
        assert state["nodes"]["slow"]["error"]["code"] == "TIMEOUT"
        await executions.until_node("e", "patient", "SUCCEEDED")

        async def started() -> int:
            return (await executions.http.post("/executions/e/nodes/again/start")).status_code

        await until(started, lambda status: status == 200)
        await executions.node("e", "again", "succeed")
        assert (await executions.until_ended("e"))["status"] == "COMPLETED"


async def test_nats_is_restarted_meanwhile(own_nats: EmbeddedNats) -> None:
    config = unique_config(own_nats.url, consumer_ack_wait_sec=3.0, ack_progress_interval_sec=0.5)
    async with opened(config) as executions, working(config):
        await executions.register("g", fork_of())
        for number in range(10):
            await executions.create("g", execution_id=f"e{number}")
        own_nats.stop()
        own_nats.start()

        async def state(execution_id: str) -> dict[str, Any]:
            answer = await executions.http.get(f"/executions/{execution_id}")
            found: dict[str, Any] = answer.json()
            return found

        for number in range(10):
            ended = await until(
                partial(state, f"e{number}"), lambda found: found.get("status") == "COMPLETED"
            )
            assert set(attempts_in(await executions.events(ended["execution_id"])).values()) == {1}
        await until(lambda: jobs_waiting(config), lambda count: count == 0)  # an ack may have been lost


# What is stored


@pytest.mark.parametrize("bucket", ["executions_kv_bucket", "leases_kv_bucket"])
async def test_a_deleted_bucket_loses_nothing(config: NatsBackendConfig, bucket: str) -> None:
    async with opened(config) as executions:
        await executions.register("g", graph({"a": EXTERNAL, "b": EXTERNAL}, "a b"))
        await executions.create("g", execution_id="e")
        before = await executions.until_node("e", "a", "READY")
        async with raw_nats(config.nats_url) as client:
            await client.jetstream().delete_stream(f"KV_{getattr(config, bucket)}")
        assert await executions.get("e") == before
        await executions.node("e", "a", "start")
        await executions.node("e", "a", "succeed")
        await executions.until_node("e", "b", "READY")
        await until(lambda: _exists(config, f"KV_{getattr(config, bucket)}"))
    async with opened(config) as executions:
        await executions.node("e", "b", "start")
        await executions.node("e", "b", "succeed")
        assert (await executions.until_ended("e"))["status"] == "COMPLETED"


async def _exists(config: NatsBackendConfig, stream_name: str) -> bool:
    async with raw_nats(config.nats_url) as client:
        with suppress(NotFoundError):
            await client.jetstream().stream_info(stream_name)
            return True
    return False


async def test_what_is_no_commit_in_a_log_stops_nobody(config: NatsBackendConfig) -> None:
    async def write(execution_id: str, data: bytes) -> None:
        async with raw_nats(config.nats_url) as client:
            await client.jetstream().publish(f"{config.executions_subject_prefix}.{execution_id}", data)

    async with opened(config) as executions:
        await executions.register("g", graph({"a": EXTERNAL, "b": EXTERNAL}, "a b"))
        await executions.create("g", execution_id="e")
        await executions.until_node("e", "a", "READY")
        await write("e", b"\xff not a commit")
        await write("nobody", b"{}")
        await executions.node("e", "a", "start")
        await executions.node("e", "a", "succeed")
        await executions.until_node("e", "b", "READY")
        await write("e", b'{"execution_id": 7}')
    async with opened(config) as executions:
        listed = (await executions.http.get("/executions")).json()["items"]
        assert [item["execution_id"] for item in listed] == ["e"]
        assert (await executions.http.get("/executions/nobody")).status_code == 404
        await executions.node("e", "b", "start")
        await executions.node("e", "b", "succeed")
        ended = await executions.until_ended("e")
        sequences = [event["sequence"] for event in await executions.events("e")]
    assert (ended["status"], sequences) == ("COMPLETED", list(range(1, ended["version"] + 1)))


async def test_a_thousand_nodes_fit_into_every_commit(config: NatsBackendConfig) -> None:
    """Also where each of them waits with a long prompt, and the reason of their cancel is long."""
    waits: dict[str, Any] = {
        f"wait-{number:03}": {"type": "wait", "prompt": "${input.text}"} for number in range(998)
    }
    nodes = {"split": {"type": "fork"}, **waits, "join": {"type": "join"}}
    edges = [f"split {name} join" for name in waits]
    async with opened(config) as executions:
        await executions.register("g", graph(nodes, *edges))
        await executions.create("g", execution_id="e", input={"text": "why? " * 1000})
        state = await executions.until_node("e", "wait-997", "WAITING")
        assert len(state["nodes"]["wait-500"]["prompt"]) == 4_000
        page = (await executions.http.get("/waits", params={"limit": 200})).json()
        assert len(page["items"]) == 200 and page["next_cursor"]  # noqa: PT018
        await executions.node("e", "wait-000", "resume", data={"ok": True})
        cancelled = await executions.post("/executions/e/cancel", reason="x" * 4_000)
        assert (cancelled["status"], len(cancelled["cancel_reason"])) == ("CANCELED", 4_000)
        assert (await executions.http.get("/waits")).json()["items"] == []


async def test_a_state_too_large_for_the_cache_is_folded_from_the_log(config: NatsBackendConfig) -> None:
    names = [f"n{number}" for number in range(6)]
    async with opened(config) as executions:
        await executions.register("g", graph(dict.fromkeys(names, EXTERNAL), " ".join(names)))
        await executions.create("g", execution_id="e", input={})
        for name in names:
            await executions.until_node("e", name, "READY")
            await executions.node("e", name, "start")
            await executions.node("e", name, "succeed", output="x" * 250_000)
        ended = await executions.until_ended("e")
    async with opened(config) as executions:
        assert await executions.get("e") == ended
    assert ended["status"] == "COMPLETED"


# Too large


async def test_a_result_too_large_to_be_kept_fails_its_node(config: NatsBackendConfig) -> None:
    config = replace(config, value_max_bytes=300_000)
    async with opened(config) as executions, working(config, big=lambda: flows.returning("x" * 400_000)):
        await executions.register("g", graph({"only": task("big")}))
        await executions.create("g", execution_id="e")
        ended = await executions.until_ended("e")
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", "OUTPUT_TOO_LARGE")
    assert ended["error"]["message"] == (
        "its run completed, but its result was too large to be kept: task 'give' returned more than 400,001 "
        "bytes of JSON; at most 300,000 bytes are kept (PYOCO_VALUE_MAX_BYTES)"
    )


async def test_a_large_output_and_large_params_pass_from_run_to_run(config: NatsBackendConfig) -> None:
    wide = {f"p{number}": "${input.text}" for number in range(6)}
    nodes = {"a": task("big"), "b": task("hand", params={"x": "${nodes.a.output.give}", **wide})}

    @pyoco_task
    def lengths(ctx: Any) -> Any:
        return {name: len(value) for name, value in ctx.params.items()}

    def hand() -> Flow:
        return Flow(name="hand") >> lengths

    async with (
        opened(config) as executions,
        working(config, big=lambda: flows.returning("x" * 400_000), hand=hand),
    ):
        await executions.register("g", graph(nodes, "a b"))
        await executions.create("g", execution_id="e", input={"text": "月" * 80_000})
        ended = await executions.until_ended("e")
    assert ended["status"] == "COMPLETED", ended["error"]
    assert ended["result"]["b"] == {"lengths": {"x": 400_000, **dict.fromkeys(wide, 80_000)}}


async def test_a_result_of_an_execution_too_large_for_a_message_fails_it(config: NatsBackendConfig) -> None:
    names = [f"n{number}" for number in range(5)]
    nodes = {"split": {"type": "fork"}, **dict.fromkeys(names, EXTERNAL)}
    async with opened(config) as executions:
        await executions.register("g", graph(nodes, *(f"split {name}" for name in names)))
        await executions.create("g", execution_id="e")
        for name in names:
            await executions.until_node("e", name, "READY")
            await executions.node("e", name, "start")
            await executions.node("e", name, "succeed", output="x" * 250_000)
        ended = await executions.until_ended("e")
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", "RESULT_TOO_LARGE")
    assert {ended["nodes"][name]["status"] for name in names} == {"SUCCEEDED"}


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        pytest.param("x" * 200_000, "TEMPLATE_FAILED", "more than 1,048,576 bytes", id="rendered"),
        # Fewer characters than are rendered at most, but more bytes than a message may have. What names
        # secrets is not stored.
        pytest.param("月" * 80_000, "PARAMS_TOO_LARGE", "params: ", id="sent"),
    ],
)
async def test_params_too_large_for_a_job_fail_their_node(
    config: NatsBackendConfig, text: str, code: str, message: str
) -> None:
    wide = {f"p{number}": "${input.text}${secrets.key}" for number in range(6)}
    async with opened(config) as executions:
        await executions.register("g", graph({"only": task(params=wide)}))
        await executions.create("g", execution_id="e", input={"text": text})
        ended = await executions.until_ended("e")
        assert (await executions.http.get("/runs")).json() == []
    assert (ended["status"], ended["error"]["code"]) == ("FAILED", code)
    assert message in ended["error"]["message"]
    assert await jobs_waiting(config) == 0


async def test_lists_are_the_same_after_a_restart(config: NatsBackendConfig) -> None:
    async def listed(executions: Executions, path: str, **wanted: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            params = {"limit": "37", **wanted, **({"cursor": cursor} if cursor else {})}
            page = (await executions.http.get(path, params=params)).json()
            items, cursor = items + page["items"], page["next_cursor"]
            if cursor is None:
                return items

    looks = (
        partial(listed, path="/executions"),
        partial(listed, path="/executions", status="ACTIVE"),
        partial(listed, path="/executions", graph_id="g"),
        partial(listed, path="/waits"),
    )
    async with opened(config) as executions:
        await executions.register("g", graph({"ask": WAIT}))
        await asyncio.gather(*(executions.create("g", execution_id=f"e{number}") for number in range(150)))
        for number in range(150):
            await executions.until_node(f"e{number}", "ask", "WAITING")
        for number in range(0, 150, 3):
            await executions.post(f"/executions/e{number}/cancel")
        before = [await look(executions) for look in looks]
    async with opened(config) as executions:
        assert [await look(executions) for look in looks] == before
    assert [len(items) for items in before] == [150, 100, 150, 100]
    created = [item["created_at"] for item in before[0]]
    assert created == sorted(created, reverse=True)
    waiting = [item["waiting_at"] for item in before[3]]
    assert waiting == sorted(waiting)
