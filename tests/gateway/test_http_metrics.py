"""REQ-0014: figures for Prometheus."""

import asyncio
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.dead_letters import DeadLetter, DlqReason
from pyoco_server.domain.fleet import WorkerFigures, WorkerState
from pyoco_server.domain.queues import Pause, Queue
from pyoco_server.domain.runs.changes import Claim, decide
from pyoco_server.domain.runs.model import Owner, RunSnapshot, RunStatus
from pyoco_server.http_api.metrics import MAX_TAGS, OTHER_TAGS, QueueSeries
from pyoco_server.wiring import new_run_id
from support.builders import NOW, OWNER, RUN_ID, a_snapshot, a_worker
from support.gateway import RunningGateway, memory_app, new_key
from support.waiting import until


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    async with memory_app() as running:
        yield running


async def figures(
    gateway: RunningGateway, headers: dict[str, str] | None = None, path: str = "/metrics"
) -> dict[str, float]:
    """Empty while there is no such worker."""
    answer = await gateway.client.get(path, headers=headers)
    if path != "/metrics" and answer.status_code == 404:
        return {}
    assert answer.status_code == 200
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def put(gateway: RunningGateway, status: RunStatus, tenant_id: str | None = None) -> None:
    run_id = new_run_id()
    await gateway.backend.runs.create(run_id, a_snapshot(status, run_id=run_id, tenant_id=tenant_id))


async def test_where_nothing_is_yet_every_figure_is_zero(gateway: RunningGateway) -> None:
    answer = await gateway.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = await figures(gateway)
    for status in RunStatus:
        assert found[f'pyoco_runs_total{{status="{status}"}}'] == 0
        assert found[f'pyoco_runs{{status="{status}"}}'] == 0
    assert (found["pyoco_workers_alive_total"], found["pyoco_dlq_messages_total"]) == (0, 0)
    assert (found["pyoco_workers_alive"], found["pyoco_dead_letters"]) == (0, 0)


async def test_the_build_and_the_process_are_described(gateway: RunningGateway) -> None:
    found = await figures(gateway)
    labels = f'python="{platform.python_version()}",version="{version("pyoco-server")}"'
    assert found[f"pyoco_build_info{{{labels}}}"] == 1
    if sys.platform == "linux":
        assert found["process_resident_memory_bytes"] > 1_000_000


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
@pytest.mark.parametrize("path", ["/metrics", "/workers/w/metrics"])
async def test_promtool_finds_nothing_wrong(gateway: RunningGateway, path: str) -> None:
    await gateway.client.post("/runs", json={"flow_name": "f"})
    await gateway.backend.workers.create("w", a_worker(worker_id="w", slots=2, figures=FIGURES))
    answer = await until(lambda: gateway.client.get(path), lambda answer: answer.status_code == 200)
    text = answer.text
    done = await asyncio.to_thread(
        subprocess.run,
        ["promtool", "check", "metrics"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


async def test_runs_workers_and_dead_letters_are_counted(gateway: RunningGateway) -> None:
    for status in (RunStatus.COMPLETED, RunStatus.COMPLETED, RunStatus.FAILED):
        await put(gateway, status)
    now = time.time()
    alive = {"last_seen_at": now, "last_heartbeat_at": now}
    for worker in (
        a_worker(worker_id="a", **alive),
        a_worker(worker_id="b", hidden=True, **alive),
        a_worker(worker_id="c", state=WorkerState.STOPPED_GRACEFUL, **alive),
        a_worker(worker_id="silent"),
    ):
        await gateway.backend.workers.create(worker.worker_id, worker)
    letter = DeadLetter(timestamp=NOW, reason=DlqReason.INVALID_JOB, error="x")
    await gateway.backend.dead_letters.publish(letter, "default")
    found = await until(
        lambda: figures(gateway),
        lambda found: (
            (found['pyoco_runs_total{status="COMPLETED"}'], found["pyoco_workers_alive_total"]) == (2, 2)
        ),
    )
    assert found['pyoco_runs_total{status="FAILED"}'] == 1
    assert found["pyoco_dlq_messages_total"] == 1


async def test_a_run_that_moves_on_is_counted_where_it_is(gateway: RunningGateway) -> None:
    revision = await gateway.backend.runs.create(RUN_ID, a_snapshot())
    await gateway.backend.runs.update(RUN_ID, a_snapshot(RunStatus.RUNNING, OWNER), revision)
    found = await until(
        lambda: figures(gateway), lambda found: found['pyoco_runs_total{status="RUNNING"}'] == 1
    )
    assert found['pyoco_runs_total{status="PENDING"}'] == 0
    await gateway.backend.runs.remove(RUN_ID, None)
    await until(lambda: figures(gateway), lambda found: found['pyoco_runs_total{status="RUNNING"}'] == 0)


async def test_waits_durations_and_redeliveries_are_measured(gateway: RunningGateway) -> None:
    await until(lambda: gateway.client.get("/ready"), lambda answer: answer.status_code == 200)
    times = {"submitted_at": NOW - 2, "start_time": NOW, "tasks": {}}
    first = a_snapshot(RunStatus.RUNNING, OWNER, **times)
    revision = await gateway.backend.runs.create(RUN_ID, first)
    ended = a_snapshot(RunStatus.COMPLETED, OWNER, start_time=NOW, end_time=NOW + 3)
    await gateway.backend.runs.update(RUN_ID, ended, revision)
    found = await until(
        lambda: figures(gateway),
        lambda found: found.get('pyoco_run_duration_seconds_sum{status="COMPLETED"}') == 3,
    )
    assert found["pyoco_run_redeliveries_total"] == 1, "OWNER is the second delivery"


async def test_no_label_has_a_value_that_somebody_outside_chose(gateway: RunningGateway) -> None:
    """Apart from tags, of which few are shown."""
    await gateway.client.post("/runs", json={"flow_name": "flow-of-mine"})
    await gateway.client.get(f"/runs/{RUN_ID}")
    for n in range(5):
        await gateway.client.get(f"/nothing/{n}")
        await gateway.client.request(f"VERB{n}", "/runs")
    text = (await gateway.client.get("/metrics")).text
    for word in (RUN_ID, "flow-of-mine", "/nothing", "VERB"):
        assert word not in text
    routes = set(re.findall(r'_count\{[^}]*route="([^"]*)"', text))
    assert {"/runs", "/runs/{run_id}", "other"} <= routes
    assert 'pyoco_http_request_duration_seconds_count{method="POST",route="/runs",status="2xx"} 1.0' in text


async def test_each_tenant_sees_its_own_runs_only() -> None:
    """REQ-0017"""
    async with memory_app(http_auth_mode="api_key") as gateway:
        ours = await new_key(gateway.backend.api_keys, "acme", "key-a")
        theirs = await new_key(gateway.backend.api_keys, "other", "key-b")
        for tenant, count in (("acme", 1), ("other", 2), (None, 4)):
            for _ in range(count):
                await put(gateway, RunStatus.FAILED, tenant)
        name = 'pyoco_runs_total{status="FAILED"}'
        await until(lambda: figures(gateway, theirs), lambda found: found[name] == 2)
        assert (await figures(gateway, ours))[name] == 1


async def test_a_delayed_start_is_measured_from_the_time_it_was_due(gateway: RunningGateway) -> None:
    """And not from its submission: a delay is no wait on the queue."""
    runs = gateway.backend.runs
    for not_before, started in ((None, NOW + 2), (NOW + 600, NOW + 603)):
        run_id = new_run_id()
        waiting = a_snapshot(run_id=run_id, submitted_at=NOW, not_before=not_before)
        revision = await runs.create(run_id, waiting)
        claimed = decide(waiting, Claim(Owner("w", "i", 1), 1), started)
        assert isinstance(claimed, RunSnapshot)
        await runs.update(run_id, claimed, revision)
    name = "pyoco_run_queue_wait_seconds"
    found = await until(lambda: figures(gateway), lambda found: found[f"{name}_count"] == 2)
    assert found[f"{name}_sum"] == 5
    late = "pyoco_run_start_lateness_seconds"
    assert (found[f"{late}_count"], found[f"{late}_sum"]) == (1, 3)


# Workers

FIGURES = WorkerFigures(
    version="1.0",
    python="3.12.1",
    started_at=NOW,
    active=1,
    ended={"COMPLETED": 7, "FAILED": 2},
    busy_sec=12.5,
    cpu_sec=3.5,
    memory_bytes=50_000_000,
)


async def worker_figures(gateway: RunningGateway, worker_id: str = "w") -> dict[str, float]:
    return await until(lambda: figures(gateway, path=f"/workers/{worker_id}/metrics"))


async def test_a_worker_has_metrics_at_the_gateway(gateway: RunningGateway) -> None:
    now = time.time()
    record = a_worker(worker_id="w", last_seen_at=now, slots=2, figures=FIGURES)
    await gateway.backend.workers.create("w", record)
    found = await worker_figures(gateway)
    assert found == {
        'pyoco_worker_up{worker_id="w"}': 1,
        'pyoco_worker_slots{worker_id="w"}': 2,
        'pyoco_worker_build_info{python="3.12.1",version="1.0",worker_id="w"}': 1,
        'pyoco_worker_start_time_seconds{worker_id="w"}': NOW,
        'pyoco_worker_active_runs{worker_id="w"}': 1,
        'pyoco_worker_runs_total{status="COMPLETED",worker_id="w"}': 7,
        'pyoco_worker_runs_total{status="FAILED",worker_id="w"}': 2,
        'pyoco_worker_run_seconds_total{worker_id="w"}': 12.5,
        'pyoco_worker_cpu_seconds_total{worker_id="w"}': 3.5,
        'pyoco_worker_memory_bytes{worker_id="w"}': 50_000_000,
    }
    (listed,) = (await gateway.client.get("/workers")).json()
    assert set(listed["figures"]) == {"host", "version", "python", "started_at"}


async def test_an_older_or_lost_worker_has_few(gateway: RunningGateway) -> None:
    await gateway.backend.workers.create("w", a_worker(worker_id="w"))
    assert await worker_figures(gateway) == {'pyoco_worker_up{worker_id="w"}': 0}


async def test_an_unknown_worker_has_none(gateway: RunningGateway) -> None:
    """ERR-PYOCO-0020"""
    await until(lambda: gateway.client.get("/ready"), lambda answer: answer.status_code == 200)
    answer = await gateway.client.get("/workers/nobody/metrics")
    assert (answer.status_code, answer.json()["err_id"]) == (404, "ERR-PYOCO-0020")


# Series of queues


def a_queue(tag: str, **changes: Any) -> Queue:
    nothing = {"waiting": 0, "running": 0, "oldest_wait_sec": 0.0, "workers": 0, "throughput_per_min": 0}
    return Queue(tag=tag, paused=None, **{**nothing, **changes})


def tags_of(queues: list[Queue]) -> list[str]:
    return [queue.tag for queue in queues]


def test_the_series_of_a_tag_end_when_its_queue_has_been_empty_for_an_hour() -> None:
    series = QueueSeries()
    assert tags_of(series.shown(None, [a_queue("gpu", waiting=1)], 0.0)) == ["gpu"]
    assert tags_of(series.shown(None, [a_queue("gpu", running=1)], 1000.0)) == ["gpu"]
    (zero,) = series.shown(None, [], 4599.0)
    assert (zero.tag, zero.waiting) == ("gpu", 0), "a scaler sees the zero"
    assert series.shown(None, [], 4600.0) == []
    assert tags_of(series.shown(None, [a_queue("gpu", waiting=1)], 4700.0)) == ["gpu"]


def test_a_paused_queue_has_series_while_it_is_paused() -> None:
    series, paused = QueueSeries(), replace(a_queue("gpu"), paused=Pause(since=NOW))
    series.shown(None, [paused], 0.0)
    assert tags_of(series.shown(None, [paused], 9999.0)) == ["gpu"]
    assert series.shown(None, [a_queue("gpu", workers=1)], 9999.0) == []


def test_many_tags_are_counted_together_and_never_hide_those_with_workers() -> None:
    series = QueueSeries()
    strange = [a_queue(f"x{n}", waiting=1, oldest_wait_sec=float(n)) for n in range(MAX_TAGS + 20)]
    assert len(series.shown(None, strange, 0.0)) == MAX_TAGS + 1
    found = series.shown(None, [*strange, a_queue("ours", waiting=3, workers=1)], 1.0)
    assert found[0].tag == "ours"
    assert (found[-1].tag, found[-1].waiting, len(found)) == (OTHER_TAGS, 21, MAX_TAGS + 1)
    assert sum(queue.waiting for queue in found) == MAX_TAGS + 23


def test_the_series_of_tenants_are_their_own() -> None:
    series = QueueSeries()
    series.shown("acme", [a_queue("gpu", waiting=1)], 0.0)
    assert series.shown("other", [], 1.0) == []
