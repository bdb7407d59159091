"""F2: the orchestrator, dead after any of its steps. Another goes on; nothing is done twice or never."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import msgspec
import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.executions.records import child_id_of, run_id_of
from pyoco_server.domain.runs.jobs import Submission, accept, pending
from pyoco_server.errors import NatsUnavailable
from pyoco_server.memory import MemoryGatewayBackend, open_memory_gateway_backend
from pyoco_server.memory.stores import MemoryStore
from pyoco_server.usecases.runs.submit import SubmitRun
from pyoco_server.wiring import new_run_id, new_thread_executors
from pyoco_server.wiring.gateway import Tuning
from pyoco_server.wiring.worker import WorkerName, new_worker
from support import flows
from support.crashing_backend import Fuse, Stumble, mortal
from support.gateway import on_backend, own_picture
from support.http_executions import Executions, attempts_in, fork_of, graph, task
from support.waiting import until

CONFIG = NatsBackendConfig(cancel_grace_period_sec=0.3)
SOON = Tuning(orchestrator_retry_sec=0.05)
KEY = {"Idempotency-Key": "the-one"}
FLOWS: dict[str, Callable[[], Any]] = {"chain": flows.chain, "failing": flows.failing}

Drive = Callable[[Executions], Awaitable[None]]


@asynccontextmanager
async def working(backend: MemoryGatewayBackend) -> AsyncIterator[None]:
    """A worker on the same store. It never dies here."""
    executors = new_thread_executors(lambda name: FLOWS[name](), CONFIG)
    worker = new_worker(CONFIG, backend, executors, WorkerName("w", ("default",)))
    await worker.open()
    running = asyncio.ensure_future(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running
        await worker.close()
        await executors.close()


class Published:
    """How many jobs the queue took, by run."""

    def __init__(self, backend: MemoryGatewayBackend) -> None:
        self.jobs: Counter[str] = Counter()
        self._put = backend.queue.put
        backend.queue.put = self._counting  # type: ignore[method-assign]

    async def _counting(self, subject: str, payload: bytes, revision: Any = None) -> None:
        self.jobs[msgspec.json.decode(payload)["run_id"]] += 1
        await self._put(subject, payload, revision)


async def create(executions: Executions) -> None:
    """As a client does that wants it once and hears of no answer."""
    body = {"graph_id": "g", "execution_id": "e", "input": {"n": 3}}
    answer = await executions.http.post("/executions", json=body, headers=KEY)
    assert answer.status_code in (201, 503), answer.text


async def create_and_cancel(executions: Executions) -> None:
    await create(executions)
    answer = await executions.http.post("/executions/e/cancel", headers=KEY)
    assert answer.status_code in (200, 404, 503), answer.text


class Outcome(msgspec.Struct):
    state: dict[str, Any]
    events: list[dict[str, Any]]
    jobs: dict[str, int]
    runs: list[dict[str, Any]]
    calls: list[str]
    children: list[dict[str, Any]]


async def carried_out(
    definition: dict[str, Any],
    drive: Drive,
    fuse: Fuse,
    tuning: Tuning | None = None,
    *,
    below: dict[str, Any] | None = None,
) -> Outcome:
    """The client asks a gateway that dies, and then, with the same key, one that does not.

    `below`: a graph that `definition` executes.
    """
    async with open_memory_gateway_backend(CONFIG) as backend, working(backend):
        published = Published(backend)
        async with on_backend(mortal(backend, fuse), CONFIG, tuning=tuning) as first:
            executions = Executions(first.client)
            if below is not None:
                await executions.register("below", below)
            await executions.register("g", definition)
            await drive(executions)
            await until(lambda: _has_been_created(backend, fuse, executions, drive))
            await until(lambda: _has_ended(backend, fuse))
        await backend.rosters.remove("orchestrators", None)  # as its silence would have it
        async with own_picture(backend, CONFIG) as other, on_backend(other, CONFIG, tuning=tuning) as second:
            executions = Executions(second.client)
            await drive(executions)
            state = await executions.until_ended("e")
            children = await until(lambda: _children(executions), _all_ended)
            runs = await until(lambda: _runs(second.client), _all_ended)
            events = await executions.events("e")
            return Outcome(state, events, dict(published.jobs), runs, fuse.calls, children)


async def _has_been_created(
    backend: MemoryGatewayBackend, fuse: Fuse, executions: Executions, drive: Drive
) -> bool:
    """A client that had no answer asks again."""
    if fuse.is_blown or [logged async for logged, _ in backend.execution_log.read("e")]:
        return True
    await drive(executions)
    return False


async def _has_ended(backend: MemoryGatewayBackend, fuse: Fuse) -> bool:
    commits = [logged async for logged, _ in backend.execution_log.read("e")]
    has_ended = bool(commits) and commits[-1] is not None and commits[-1].summary.ended_at is not None
    return fuse.is_blown or has_ended


async def _runs(http: httpx2.AsyncClient) -> list[dict[str, Any]]:
    answer = await http.get("/runs", params={"limit": 200})
    found = answer.json()
    runs: list[dict[str, Any]] = found["items"] if isinstance(found, dict) else found
    return [(await http.get(f"/runs/{run['run_id']}")).json() for run in runs]


async def _children(executions: Executions) -> list[dict[str, Any]]:
    listed = (await executions.http.get("/executions", params={"limit": 200})).json()["items"]
    ids = [item["execution_id"] for item in listed if item["parent_execution_id"] is not None]
    return [{**await executions.get(one), "events": await executions.events(one)} for one in ids]


def _all_ended(found: list[dict[str, Any]]) -> bool:
    return all(one["status"] in ("COMPLETED", "FAILED", "CANCELLED", "CANCELED") for one in found)


def check(outcome: Outcome, died: str) -> None:
    logs = [outcome.events, *(child["events"] for child in outcome.children)]
    for events in logs:
        sequences = [event["sequence"] for event in events]
        assert sequences == list(range(1, len(sequences) + 1)), died
        attempts = attempts_in(events)
        assert set(attempts.values()) == {1} or not attempts, (died, attempts)
    assert all(count == 1 for count in outcome.jobs.values()), (died, outcome.jobs)
    started = [event["payload"] for events in logs for event in events if event["type"] == "NODE_STARTED"]
    of_log = {payload["run_id"] for payload in started if payload.get("run_id")} | items_of(outcome)
    assert {run["run_id"] for run in outcome.runs} <= of_log, died
    children = {child["execution_id"] for child in outcome.children}
    assert children <= {payload.get("child_execution_id") for payload in started} | items_of(outcome), died
    for state in (outcome.state, *outcome.children):
        unfinished = [node for node in state["nodes"].values() if node["status"] in ("RUNNING", "READY")]
        assert unfinished == [], (died, state)


def items_of(outcome: Outcome) -> set[str]:
    """Work of the items of the map `each`."""
    opened = [event["payload"] for event in outcome.events if event["type"] == "MAP_OPENED"]
    indexes = range(opened[0]["items"]) if opened else range(0)
    return {make("e", "each", 1, index) for make in (run_id_of, child_id_of) for index in indexes}


async def dead_after_each_step(
    definition: dict[str, Any],
    drive: Drive,
    is_right: Callable[[Outcome], bool],
    below: dict[str, Any] | None = None,
) -> None:
    whole = await carried_out(definition, drive, Fuse(), below=below)
    check(whole, "nobody died")
    assert is_right(whole), whole.state
    for step, call in enumerate(whole.calls, start=1):
        outcome = await carried_out(definition, drive, Fuse(step), below=below)
        check(outcome, f"died after step {step}, {call}")
        assert is_right(outcome), (f"died after step {step}, {call}", outcome.state)


@pytest.mark.parametrize("is_done", [True, False])
async def test_any_call_may_have_no_answer(*, is_done: bool) -> None:
    """It goes on in the same process, at the next look."""
    definition = fork_of(params={"n": "${input.n}"})
    whole = await carried_out(definition, create, Fuse())
    for step, call in enumerate(whole.calls, start=1):
        outcome = await carried_out(definition, create, Stumble(step, is_done=is_done), SOON)
        check(outcome, f"no answer to step {step}, {call}")
        assert outcome.state["status"] == "COMPLETED", (step, call, outcome.state)
        assert len(outcome.runs) == len(outcome.jobs) == 3, (step, call)


async def test_each_run_is_dispatched_once_whichever_step_was_the_last() -> None:
    def is_right(outcome: Outcome) -> bool:
        return outcome.state["status"] == "COMPLETED" and len(outcome.runs) == len(outcome.jobs) == 3

    await dead_after_each_step(fork_of(params={"n": "${input.n}"}), create, is_right)


async def test_each_attempt_has_one_run_whichever_step_was_the_last() -> None:
    def is_right(outcome: Outcome) -> bool:
        error = outcome.state["error"]
        is_failed = (outcome.state["status"], error["code"]) == ("FAILED", "RUN_FAILED")
        return is_failed and len(outcome.runs) == len(outcome.jobs) == 2

    retried = {"only": task("failing", retry={"max_attempts": 2, "backoff_sec": 0.05})}
    await dead_after_each_step(graph(retried), create, is_right)


async def test_repeats_and_undos_are_done_once_whichever_step_was_the_last() -> None:
    poll = {"type": "repeat", "node": {"flow": "chain"}, "until": "false", "max": 2, "every_sec": 0.02}
    nodes = {"first": task(undo="back"), "poll": poll}

    def is_right(outcome: Outcome) -> bool:
        state = outcome.state
        back = state["nodes"]["back"]
        is_undone = (state["status"], back["status"], back["undoes"]) == ("FAILED", "SUCCEEDED", "first")
        return is_undone and state["error"]["code"] == "REPEAT_LIMIT" and len(outcome.runs) == 4

    await dead_after_each_step(graph({**nodes, "back": task()}, "first poll"), create, is_right)


CHILD = {"type": "execution", "graph": "below"}


async def test_a_child_is_executed_once_whichever_step_was_the_last() -> None:
    def is_right(outcome: Outcome) -> bool:
        [child] = outcome.children
        is_whole = len(outcome.runs) == len(outcome.jobs) == 2
        return (outcome.state["status"], child["status"]) == ("COMPLETED", "COMPLETED") and is_whole

    nodes = {"child": {**CHILD, "input": "${input}"}, "last": task()}
    below = graph({"only": task(params={"n": "${input.n}"})})
    await dead_after_each_step(graph(nodes, "child last"), create, is_right, below)


async def test_a_cancel_reaches_the_child_whichever_step_was_the_last() -> None:
    def is_right(outcome: Outcome) -> bool:
        return outcome.state["status"] in ("CANCELED", "COMPLETED") and len(outcome.children) <= 1

    below = graph({"only": task(tag="nobody")})
    await dead_after_each_step(graph({"child": CHILD}), create_and_cancel, is_right, below)


def mapped(**more: Any) -> dict[str, Any]:
    node = {"type": "map", "over": [1, 2, 3], "max_parallel": 2, **more}
    return graph({"each": node, "last": task()}, "each last")


ITEM = {"flow": "chain", "params": {"n": "${item}"}}


@pytest.mark.parametrize("of_graph", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_each_item_runs_once_whichever_step_was_the_last(*, of_graph: bool) -> None:
    def is_right(outcome: Outcome) -> bool:
        items = outcome.state["nodes"]["each"]["items"]
        is_whole = len(outcome.runs) == len(outcome.jobs) == 4
        return (outcome.state["status"], items["succeeded"]) == ("COMPLETED", 3) and is_whole

    more = {"graph": "below", "input": {"n": "${item}"}} if of_graph else {"node": ITEM}
    below = graph({"only": task(params={"n": "${input.n}"})})
    await dead_after_each_step(mapped(**more), create, is_right, below)


async def test_a_cancel_reaches_the_items_whichever_step_was_the_last() -> None:
    def is_right(outcome: Outcome) -> bool:
        return outcome.state["status"] == "CANCELED" and len(outcome.runs) <= 3

    await dead_after_each_step(mapped(node={**ITEM, "tag": "nobody"}), create_and_cancel, is_right)


async def test_a_cancel_converges_whichever_step_was_the_last() -> None:
    def is_right(outcome: Outcome) -> bool:
        return outcome.state["status"] in ("CANCELED", "COMPLETED")

    await dead_after_each_step(fork_of(tag="nobody"), create_and_cancel, is_right)


async def test_a_timed_out_run_is_cancelled_whichever_step_was_the_last() -> None:
    """No worker has its tag: the run of each attempt stays PENDING until it is cancelled."""

    def is_right(outcome: Outcome) -> bool:
        statuses = Counter(run["status"] for run in outcome.runs)
        return outcome.state["error"]["code"] == "TIMEOUT" and set(statuses) == {"CANCELLED"}

    slow = {"only": task(tag="nobody", timeout_sec=0.1, retry={"max_attempts": 2})}
    await dead_after_each_step(graph(slow), create, is_right)


@pytest.mark.parametrize("count", [1, 3])
async def test_two_orchestrators_at_once_do_everything_once(count: int) -> None:
    """Both believe to hold the lease; each has a lease of its own."""
    async with open_memory_gateway_backend(CONFIG) as backend, working(backend):
        published = Published(backend)
        async with (
            on_backend(backend, CONFIG) as first,
            own_picture(backend, CONFIG) as other,
            on_backend(_with_own_roster(other), CONFIG) as second,
        ):
            both = [Executions(first.client), Executions(second.client)]
            await both[0].register("g", fork_of())
            for number in range(count):
                await both[number % 2].create("g", execution_id=f"e{number}")
            for number in range(count):
                state = await both[number % 2].until_ended(f"e{number}")
                assert state["status"] == "COMPLETED"
                assert set(attempts_in(await both[0].events(f"e{number}")).values()) == {1}
    assert set(published.jobs.values()) == {1}
    assert len(published.jobs) == 3 * count


def _with_own_roster(backend: MemoryGatewayBackend) -> MemoryGatewayBackend:
    """It believes that it is alone."""
    return replace(backend, rosters=MemoryStore(codec.encode, codec.decode_roster))


async def test_a_run_that_somebody_else_left_without_its_job_gets_it_once() -> None:
    async with open_memory_gateway_backend(CONFIG) as backend:
        published = Published(backend)
        submit_run = SubmitRun(backend.runs, backend.queue, time.time, new_run_id)
        job = accept(Submission(flow_name="f", tag="default"), new_run_id(), time.time())
        await backend.runs.create(job.run_id, pending(job))
        for _ in range(2):
            await submit_run.place_derived(job)
    assert published.jobs == {job.run_id: 1}


class Stumbling:
    """A queue that refuses its first job at once, and its second one late: when the first is tried again."""

    def __init__(self, backend: MemoryGatewayBackend) -> None:
        self._publish = backend.queue.publish
        self._calls = 0
        self._is_tried_again = asyncio.Event()
        backend.queue.publish = self._stumbling  # type: ignore[method-assign]

    async def _stumbling(self, *arguments: Any, **options: Any) -> bool:
        self._calls += 1
        match self._calls:
            case 1:
                raise NatsUnavailable("the first one")
            case 2:
                await asyncio.wait({asyncio.ensure_future(self._is_tried_again.wait())}, timeout=2)
                raise NatsUnavailable("the second one, late")
        self._is_tried_again.set()
        return await self._publish(*arguments, **options)


async def test_of_two_runs_that_cannot_be_placed_at_once_both_are_placed() -> None:
    async with open_memory_gateway_backend(CONFIG) as backend, on_backend(backend, CONFIG) as gateway:
        Stumbling(backend)
        executions = Executions(gateway.client)
        both = {"split": {"type": "fork"}, "left": task(), "right": task()}
        await executions.register("g", graph(both, "split left", "split right"))
        await executions.create("g", execution_id="e")
        await until(backend.queue.run_ids, lambda placed: len(placed) == 2)
