"""A gateway's index of runs at its full size: start without and with its file, memory, every pair of filters.

The runs are written straight into the bucket; everything else is as in an installation. The same questions go
to a gateway with 1,000 runs, in turns. Executions: the same starts with as many logs of one commit.
"""

import argparse
import asyncio
import itertools
import os
import signal
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import nats

from gateways import Gateway, gateway_in, nats_for_a_while
from lists import IN_FLIGHT, ask
from page import Figures, Goal, show, table
from processes import rss_mb
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain import codec
from pyoco_server.domain.executions.codec import encode_commit
from pyoco_server.domain.executions.events import ORCHESTRATOR, Commit, NodeSucceeded
from pyoco_server.domain.executions.model import ExecutionStatus, NodeStatus
from pyoco_server.domain.executions.records import ExecutionSummary, LoggedCommit
from pyoco_server.domain.runs.listing import Place, RunFilter, encode_cursor
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus, TaskRecord, TaskState
from pyoco_server.wiring import ensure_resources, new_run_id

FEW = 1_000
COLD_SEC, WARM_SEC, MEMORY_MB, GROWTH = 60.0, 5.0, 300.0, 1.5
"""Wanted with a million runs."""
PATIENCE_SEC = 900.0
SHA = "ab" * 32
FILTERS = {
    "status": "FAILED",
    "flow": "flow-0",
    "tag": "gpu",
    "workflow_yaml_sha256": SHA,
    "updated_after": "1700000000",
}
TASKS = ("load", "clean", "store")
SUCCEEDED = NodeSucceeded(node_id="gather", output={"n": 1})


def a_run(n: int, run_id: str) -> bytes:
    """What a flow of three tasks leaves. One in twenty fits all filters, so that every page is full."""
    at = time.time()
    tag = "gpu" if n % 4 == 0 else "default"
    done = TaskRecord(state=TaskState.SUCCEEDED, started_at=at, ended_at=at, inputs={"n": n}, output={"n": n})
    return codec.encode(
        RunSnapshot(
            run_id=run_id,
            flow_name=f"flow-{n % 20}",
            status=RunStatus.FAILED if n % 10 == 0 else RunStatus.COMPLETED,
            params={"n": n},
            tasks=dict.fromkeys(TASKS, TaskState.SUCCEEDED),
            task_records=dict.fromkeys(TASKS, done),
            heartbeat_at=at,
            updated_at=at,
            submitted_at=at,
            start_time=at,
            end_time=at,
            tag=tag,
            tags=(tag, "nightly") if n % 3 == 0 else (tag,),
            workflow_yaml_sha256=SHA if n % 5 == 0 else None,
            result={"n": n},
        )
    )


async def fill(config: NatsBackendConfig, runs: int) -> tuple[Place, Place]:
    """The places of runs in the middle of the lists and near their end."""
    await ensure_resources(config)
    client = await nats.connect(config.nats_url)
    js = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    places = []
    for n in range(runs):
        run_id = new_run_id()
        if n in (runs - runs // 2, runs - runs * 9 // 10):
            places.append(Place(time.time(), run_id))
        await js.publish_async(
            f"$KV.{config.runs_kv_bucket}.{run_id}", a_run(n, run_id), headers={"Nats-TTL": "2592000s"}
        )
    await js.publish_async_completed()
    await client.close()
    return places[1], places[0]


def paths(places: tuple[Place, Place]) -> dict[str, str]:
    """Every filter, every pair of them, all; from the top, from the middle and near the end; and figures."""
    found = {}
    for size in (0, 1, 2, len(FILTERS)):
        for chosen in itertools.combinations(FILTERS, size):
            query = "".join(f"&{name}={FILTERS[name]}" for name in chosen)
            found[" + ".join(chosen) or "no filter"] = f"/runs?limit=20{query}"
    for place, where in zip(places, ("from the middle", "near the end"), strict=True):
        found[where] = f"/runs?limit=20&cursor={encode_cursor(place, RunFilter())}"
        wanted = RunFilter(status=RunStatus.FAILED, tag="gpu")
        cursor = encode_cursor(place, wanted)
        found[f"status + tag, {where}"] = f"/runs?limit=20&status=FAILED&tag=gpu&cursor={cursor}"
    return {**found, "figures": "/metrics", "queues": "/queues"}


def started(stack: ExitStack, directory: Path, config: NatsBackendConfig) -> tuple[Gateway, float]:
    began = time.monotonic()
    gateway = stack.enter_context(gateway_in(directory, config, "runs_kv_bucket", patience_sec=PATIENCE_SEC))
    return gateway, time.monotonic() - began


def measure(runs: int, times: int, executions: int) -> Figures:
    found = measure_runs(runs, times)
    return Figures([*found.lines, "", *measure_executions(executions)], found.goals)


def measure_runs(runs: int, times: int) -> Figures:
    with ExitStack() as stack:
        server = stack.enter_context(nats_for_a_while())
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        few, many = (
            NatsBackendConfig(nats_url=server.url, runs_kv_bucket=f"runs_{size}") for size in (FEW, runs)
        )
        few_places, many_places = asyncio.run(fill(few, FEW)), asyncio.run(fill(many, runs))
        small, _ = started(stack, homes[0], few)
        with ExitStack() as first:
            large, cold = started(first, homes[1], many)
            filled_mb = rss_mb(large.pid)
            os.kill(large.pid, signal.SIGKILL)
        large, warm = started(stack, homes[1], many)
        took = {
            name: asyncio.run(ask([(small.port, path), (large.port, paths(many_places)[name])], times))
            for name, path in paths(few_places).items()
        }
        memory = max(filled_mb, rss_mb(large.pid))
        disk = sum(file.stat().st_size for file in (homes[1] / ".pyoco").rglob("*") if file.is_file())
    return _figures(runs, cold, warm, memory, disk, took)


def an_execution(n: int) -> LoggedCommit:
    """The last commit of one that has ended."""
    of, at = new_run_id(), time.time()
    commit = Commit(
        execution_id=of, command_id=of, first_sequence=9, at=at, actor=ORCHESTRATOR, payloads=(SUCCEEDED,)
    )
    summary = ExecutionSummary(
        execution_id=of,
        graph_id=f"graph-{n % 20}",
        graph_version=1,
        status=ExecutionStatus.FAILED if n % 10 == 0 else ExecutionStatus.COMPLETED,
        version=9,
        created_at=at,
        updated_at=at,
        started_at=at,
        ended_at=at,
        node_counts={NodeStatus.SUCCEEDED: 5},
    )
    return LoggedCommit(commit, summary)


async def fill_executions(config: NatsBackendConfig, executions: int) -> None:
    await ensure_resources(config)
    client = await nats.connect(config.nats_url)
    js = client.jetstream(publish_async_max_pending=IN_FLIGHT)
    for n in range(executions):
        logged = an_execution(n)
        subject = f"{config.executions_subject_prefix}.{logged.commit.execution_id}"
        await js.publish_async(subject, encode_commit(logged))
    await js.publish_async_completed()
    await client.close()


def measure_executions(executions: int) -> list[str]:
    with ExitStack() as stack:
        server = stack.enter_context(nats_for_a_while())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = NatsBackendConfig(nats_url=server.url)
        asyncio.run(fill_executions(config, executions))
        with ExitStack() as first:
            gateway, cold = started(first, home, config)
            filled = rss_mb(gateway.pid)
            os.kill(gateway.pid, signal.SIGKILL)
        gateway, warm = started(stack, home, config)
        again = rss_mb(gateway.pid)
    return table(
        (f"{executions:,} executions", "first start", "after kill -9"),
        [
            ("ready after", f"{cold:.1f} s", f"{warm:.1f} s"),
            ("memory", f"{filled:.0f} MB", f"{again:.0f} MB"),
        ],
    )


def _figures(
    runs: int, cold: float, warm: float, memory: float, disk: int, took: dict[str, list[float]]
) -> Figures:
    worst = max(row[-1] / row[0] for row in took.values())
    lines = table(
        ("p50", f"{FEW:,} runs", f"{runs:,} runs", "ratio"),
        [(name, *(f"{ms:.2f} ms" for ms in row), f"{row[-1] / row[0]:.2f} ×") for name, row in took.items()],
    )
    lines += ["", f"The index of {runs:,} runs takes {disk / 1e6:,.0f} MB on disk."]
    share = runs / 1_000_000
    goals = [
        (f"first start with {runs:,} runs", f"≤ {COLD_SEC * share + WARM_SEC:.0f} s", f"{cold:.1f} s"),
        ("start after kill -9", f"≤ {WARM_SEC:.0f} s", f"{warm:.1f} s"),
        ("gateway's memory", f"≤ {MEMORY_MB:.0f} MB", f"{memory:.0f} MB"),
        ("lists and figures, the worst ratio", f"≤ {GROWTH} ×", f"{worst:.2f} ×"),
    ]
    reached = (cold <= COLD_SEC * share + WARM_SEC, warm <= WARM_SEC, memory <= MEMORY_MB, worst <= GROWTH)
    return Figures(lines, [Goal(*goal, ok) for goal, ok in zip(goals, reached, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000, help="0: executions only")
    parser.add_argument("--times", type=int, default=40, help="requests of each kind, five times")
    parser.add_argument("--executions", type=int, default=200_000)
    chosen = parser.parse_args()
    if not chosen.runs:
        show(Figures(measure_executions(chosen.executions), []))
        return
    show(measure(chosen.runs, chosen.times, chosen.executions))


if __name__ == "__main__":
    main()
