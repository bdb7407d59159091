"""A flow of three tiny tasks on Prefect: a deployment that is served, submitted through its API."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.deployments import run_deployment

CLIENTS = 16
NAME = "tiny/bench"
PATIENCE_SEC = 240.0
HUNG = 3
"""The exit code that says so to bench/peers.py."""


@task
def one():
    return 1


@task
def two(value):
    return value + 1


@task
def three(value):
    return value + 1


@flow(log_prints=False)
def tiny():
    return three(two(one()))


def submit(count):
    return [run_deployment(NAME, timeout=0).id for _ in range(count)]


def wait_for_completed(ids, pause):
    """All of them in one question: that costs the server least."""
    deadline = time.monotonic() + PATIENCE_SEC
    with get_client(sync_client=True) as client:
        while True:
            wanted = FlowRunFilter(id=FlowRunFilterId(any_=ids))
            states = [run.state_name for run in client.read_flow_runs(flow_run_filter=wanted)]
            if states == ["Completed"] * len(ids):
                return
            assert not {"Failed", "Crashed", "Cancelled"} & set(states), states
            if time.monotonic() > deadline:
                print(f"not completed after {PATIENCE_SEC:g} s: {states}", file=sys.stderr)
                sys.exit(HUNG)
            time.sleep(pause)


def runs_per_second(runs):
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = pool.map(lambda _: submit(max(1, runs // CLIENTS)), range(min(runs, CLIENTS)))
        ids = [run_id for share in shares for run_id in share]
    wait_for_completed(ids, 0.1)
    return len(ids) / (time.perf_counter() - began)


def idle_latency(times):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        wait_for_completed(submit(1), 0.02)
        taken.append(time.perf_counter() - began)
    return sorted(taken)


def wait_until_ready():
    """The deployment is there a moment after the program that serves it has started."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(Exception), get_client(sync_client=True) as client:
            client.read_deployment_by_name(NAME)
            return
        time.sleep(0.2)
    sys.exit("the deployment is not there")


if __name__ == "__main__":
    what = sys.argv[1]
    if what == "serve":
        tiny.serve("bench", print_starting_message=False)
    elif what == "ready":
        wait_until_ready()
        print(json.dumps({}))
    elif what == "rate":
        print(json.dumps({"rate": runs_per_second(int(sys.argv[2]))}))
    else:
        taken = idle_latency(int(sys.argv[2]))
        print(json.dumps({"p50": taken[len(taken) // 2]}))
