"""F2, F4, F7: gateways that are killed or frozen while they orchestrate; every execution has one end."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.executions.records import run_id_of
from pyoco_server.wiring import EmbeddedNats
from support.gateways import GatewayProcess, gateways
from support.http_executions import Executions, attempts_in, fork_of, graph, task
from support.installation import FLOWS, TERMINAL, environment
from support.nats_server import delete_streams_of, jobs_waiting, messages_in, unique_config
from support.programs import Programs, freeze
from support.real_workflows import WORKFLOWS, as_graph
from support.waiting import until

GRACE_SEC = 1.0


@pytest.fixture
async def config(nats_server: EmbeddedNats) -> AsyncIterator[NatsBackendConfig]:
    settings = unique_config(
        nats_server.url,
        cancel_grace_period_sec=GRACE_SEC,
        consumer_ack_wait_sec=5.0,
        ack_progress_interval_sec=1.0,
    )
    yield settings
    await delete_streams_of(settings)


@pytest.fixture
def marks(programs: Programs) -> Path:
    """Where flows and their test leave each other signs."""
    path = programs.directory / "marks"
    path.mkdir()
    return path


async def reached(marks: Path, name: str) -> None:
    async def is_there() -> bool:
        return (marks / name).exists()

    await until(is_there)


@asynccontextmanager
async def workers(config: NatsBackendConfig, programs: Programs, *names: str) -> AsyncIterator[None]:
    with ExitStack() as stack:
        options = ("--flow-resolver", FLOWS, "--concurrency", "2")
        started = [
            stack.enter_context(
                programs.started("pyoco-worker", "--worker-id", name, *options, **environment(config))
            )
            for name in names
        ]
        for program in started:
            await asyncio.to_thread(program.says, "worker ready")
        yield


class Client:
    """Asks until somebody answers, with a key that makes a repeat harmless."""

    def __init__(self, gateways: list[GatewayProcess]) -> None:
        self._gateways = gateways
        self._asked = 0

    async def ask(self, method: str, path: str, key: str | None = None, **options: Any) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}

        async def answer() -> httpx2.Response | None:
            gateway = self._gateways[self._asked % len(self._gateways)]
            self._asked += 1
            try:
                found = await gateway.http.request(method, path, headers=headers, **options)
            except httpx2.TransportError:
                return None
            return None if found.status_code == 503 else found

        response = await until(answer, lambda found: found is not None)
        assert response is not None
        assert response.status_code < 300, response.text
        return response.json()

    async def ended(self, execution_id: str) -> dict[str, Any]:
        state: dict[str, Any] = await until(
            partial(self.ask, "GET", f"/executions/{execution_id}"),
            lambda found: found["status"] != "ACTIVE",
        )
        return state

    async def items_ended(self, execution_id: str, node_id: str, wanted: int) -> None:
        """As long as there is progress, it may take its time."""
        seen = -1

        async def ended() -> int:
            return _items_ended(await self.ask("GET", f"/executions/{execution_id}"), node_id)

        while seen < wanted:
            seen = await until(ended, partial(int.__lt__, seen))

    async def events(self, execution_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            after = found[-1]["sequence"] if found else 0
            path = f"/executions/{execution_id}/events?limit=100&after={after}"
            page: list[dict[str, Any]] = (await self.ask("GET", path))["items"]
            if not page:
                return found
            found += page

    async def runs_of(self, execution_id: str) -> list[dict[str, Any]]:
        """Of every attempt that its log tells of; all of them have ended when this answers."""
        events = await self.events(execution_id)
        attempts = attempts_in(events)
        assert set(attempts.values()) <= {1}, attempts
        started = [event["payload"] for event in events if event["type"] == "NODE_STARTED"]
        run_ids = [payload["run_id"] for payload in started if payload.get("run_id")]
        assert len(set(run_ids)) == len(run_ids)
        return [
            await until(partial(self.ask, "GET", f"/runs/{run_id}"), lambda run: run["status"] in TERMINAL)
            for run_id in run_ids
        ]


def _items_ended(state: dict[str, Any], node_id: str) -> int:
    items = state["nodes"][node_id].get("items") or {}
    return int(items.get("succeeded", 0) + items.get("failed", 0))


async def test_no_execution_is_lost_while_gateways_are_killed(
    config: NatsBackendConfig, programs: Programs, campaign: int | None
) -> None:
    """Seeded: PYOCO_TEST_CAMPAIGN says how many executions; then one of two gateways is killed ten times."""
    chance = random.Random(71_003)  # noqa: S311
    count, kills = campaign or 60, 10 if campaign else 3
    async with gateways(config, programs, 2) as both, workers(config, programs, "w1", "w2"):
        client = Client(both)
        await client.ask("PUT", "/graphs/g", json=fork_of("tiny"))

        async def create_all() -> None:
            for number in range(count):
                body = {"graph_id": "g", "execution_id": f"e{number}"}
                await client.ask("POST", "/executions", f"key-{number}", json=body)
                await asyncio.sleep(chance.uniform(0.0, 0.05))

        creating = asyncio.ensure_future(create_all())
        for _ in range(kills):
            await asyncio.sleep(chance.uniform(0.2, 1.5))  # the random moment is what is tried here
            victim = chance.choice(both)
            await victim.kill()
            await victim.start()
        await creating
        runs: Counter[str] = Counter()
        for number in range(count):
            state = await client.ended(f"e{number}")
            assert state["status"] == "COMPLETED", state
            for run in await client.runs_of(f"e{number}"):
                runs[run["status"]] += 1
        listed = await client.ask("GET", "/executions?limit=1")
        assert listed["items"]
    assert runs == {"COMPLETED": 3 * count}
    assert await jobs_waiting(config) == 0


@pytest.mark.parametrize(
    ("items", "kills"), [(300, 2), pytest.param(10_000, 10, marks=pytest.mark.long)], ids=str
)
async def test_each_item_of_a_map_has_one_run_while_gateways_are_killed(
    config: NatsBackendConfig, programs: Programs, items: int, kills: int
) -> None:
    bad = {0, items // 2, items - 1}
    numbers = [-1 if index in bad else index for index in range(items)]
    node = {"flow": "double", "params": {"n": "${item}"}}
    each = {"type": "map", "over": "${input}", "node": node, "tolerate": len(bad), "max_parallel": 50}
    async with gateways(config, programs, 2) as both, workers(config, programs, "w1", "w2"):
        client = Client(both)
        await client.ask("PUT", "/graphs/g", json=graph({"each": each}))
        body = {"graph_id": "g", "execution_id": "e", "input": numbers}
        await client.ask("POST", "/executions", "key", json=body)
        for kill in range(kills):
            await client.items_ended("e", "each", items * kill // (kills + 1))
            await both[kill % 2].kill()
            await both[kill % 2].start()
        await client.items_ended("e", "each", items)
        state = await client.ended("e")
        run_ids = [run_id_of("e", "each", 1, index) for index in range(items)]
        runs = [await client.ask("GET", f"/runs/{run_id}") for run_id in run_ids[:: max(1, items // 200)]]
    assert state["status"] == "COMPLETED"
    assert state["result"]["each"] == [None if n < 0 else {"doubled": 2 * n} for n in numbers]
    assert state["version"] <= max(100, items // 10)
    assert {run["status"] for run in runs} <= {"COMPLETED", "FAILED"}
    assert await messages_in(config, f"KV_{config.runs_kv_bucket}") == items
    assert await jobs_waiting(config) == 0


@pytest.mark.parametrize("name", WORKFLOWS)
async def test_a_real_workflow_runs_to_its_end_with_its_structure_kept(
    config: NatsBackendConfig, programs: Programs, name: str
) -> None:
    make, tasks = WORKFLOWS[name]
    parents = make()
    assert len(parents) == tasks
    async with gateways(config, programs) as (gateway,), workers(config, programs, "w1"):
        client = Client([gateway])
        await client.ask("PUT", f"/graphs/{name}", json=as_graph(parents))
        await client.ask("POST", "/executions", "key", json={"graph_id": name, "execution_id": "e"})
        assert (await client.ended("e"))["status"] == "COMPLETED"
        events = await client.events("e")
    at = {(event["type"], event["payload"].get("node_id")): event["sequence"] for event in events}
    for child, above in parents.items():
        started = at["NODE_STARTED", child]
        assert all(at["NODE_SUCCEEDED", parent] < started for parent in above), child
    assert await messages_in(config, f"KV_{config.runs_kv_bucket}") == tasks


async def test_another_gateway_goes_on_when_one_is_killed(
    config: NatsBackendConfig, programs: Programs, marks: Path
) -> None:
    """Of several executions some are in the part of each gateway."""
    names = [f"e{number}" for number in range(6)]
    async with gateways(config, programs, 2) as (victim, other), workers(config, programs, "w1"):
        params = {"marks": str(marks)}
        steps = graph({"a": task("steps", params=params), "b": task("steps", params=params)}, "a b")
        await other.executions.register("g", steps)
        for name in names:
            await other.executions.create("g", execution_id=name)
        await reached(marks, "in-first")
        await victim.kill()
        (marks / "go").write_text("0")
        for name in names:
            ended = await other.executions.until_ended(name)
            assert ended["status"] == "COMPLETED"
            assert len(await Client([other]).runs_of(name)) == 2


async def test_a_gateway_that_was_frozen_does_nothing_twice(
    config: NatsBackendConfig, programs: Programs
) -> None:
    async with gateways(config, programs, 2) as (frozen, other), workers(config, programs, "w1", "w2"):
        await other.executions.register("g", fork_of("tiny"))
        alone = asyncio.ensure_future(other.until_it_orchestrates_alone())
        for number in range(20):
            if number == 10:
                freeze(frozen.program.pid)
            await other.executions.create("g", execution_id=f"e{number}")
        await alone
        frozen.program.send(signal.SIGCONT)
        for number in range(20):
            assert (await other.executions.until_ended(f"e{number}"))["status"] == "COMPLETED"
            assert len(await Client([frozen, other]).runs_of(f"e{number}")) == 3
    assert await jobs_waiting(config) == 0


async def test_a_cancel_stops_the_run_of_a_worker(
    config: NatsBackendConfig, programs: Programs, marks: Path
) -> None:
    """A flow that looks ends itself; one that never looks is ended with its process."""
    async with gateways(config, programs) as (gateway,), workers(config, programs, "w1"):
        executions = gateway.executions
        for flow, mark in (("watchful", "in-watch"), ("stuck", "in-sleep")):
            await executions.register(flow, graph({"only": task(flow, params={"marks": str(marks)})}))
            await executions.create(flow, execution_id=flow)
            await reached(marks, mark)
            await executions.post(f"/executions/{flow}/cancel", reason="enough")
            ended = await executions.until_ended(flow)
            assert (ended["status"], ended["nodes"]["only"]["status"]) == ("CANCELED", "CANCELED")
            runs = await Client([gateway]).runs_of(flow)
            assert [run["status"] for run in runs] == ["CANCELLED"]


async def test_a_node_that_takes_too_long_stops_its_worker(
    config: NatsBackendConfig, programs: Programs, marks: Path
) -> None:
    slow = task("watchful", params={"marks": str(marks)}, timeout_sec=2.0)
    async with gateways(config, programs) as (gateway,), workers(config, programs, "w1"):
        await gateway.executions.register("g", graph({"only": slow}))
        await gateway.executions.create("g", execution_id="e")
        ended = await gateway.executions.until_ended("e")
        assert (ended["status"], ended["error"]["code"]) == ("FAILED", "TIMEOUT")
        assert [run["status"] for run in await Client([gateway]).runs_of("e")] == ["CANCELLED"]


async def test_no_cancel_of_an_execution_is_lost_at_any_moment(
    config: NatsBackendConfig, programs: Programs, campaign: int | None
) -> None:
    """Seeded: PYOCO_TEST_CAMPAIGN says how many executions. Accepted before its end, it is its end."""
    chance = random.Random(90_210)  # noqa: S311
    answers: dict[str, str] = {}
    async with gateways(config, programs, 2) as both, workers(config, programs, "w1"):
        await both[0].executions.register("g", fork_of("tiny", params={"pause": 0.02}))

        async def one(number: int) -> None:
            executions: Executions = both[number % 2].executions
            await executions.create("g", execution_id=f"e{number}")
            await asyncio.sleep(chance.uniform(0.0, 1.0))  # the random moment is what is tried here
            state = await executions.post(f"/executions/e{number}/cancel")
            answers[f"e{number}"] = "COMPLETED" if state["status"] == "COMPLETED" else "CANCELED"

        for start in range(0, campaign or 60, 10):
            await asyncio.gather(*(one(number) for number in range(start, start + 10)))
        client = Client(both)
        ends = {execution_id: await client.ended(execution_id) for execution_id in answers}
        lost = {name: state["status"] for name, state in ends.items() if state["status"] != answers[name]}
        assert lost == {}
        for execution_id, state in ends.items():
            assert all(node["status"] in ("SUCCEEDED", "CANCELED") for node in state["nodes"].values())
            await client.runs_of(execution_id)
    assert "CANCELED" in answers.values()
