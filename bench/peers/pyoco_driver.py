"""Sixteen clients of a pyoco-server, new or old: its own HTTP client, in threads of one process."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyoco_server.http_client import PyocoHttpClient

CLIENTS = 16
PATIENCE_SEC = 60.0
HUNG = 3
"""The exit code that says so to bench/peers.py."""
FAILED = {"FAILED", "CANCELLED"}


def submit(client: PyocoHttpClient, count: int) -> list[str]:
    return [client.submit_run("tiny", {"x": 1})["run_id"] for _ in range(count)]


def submit_all(url: str, count: int) -> tuple[float, list[list[str]]]:
    """When it began, and the ids by client. A client is made and connected before that, as in any program."""
    clients = [PyocoHttpClient(url) for _ in range(CLIENTS)]
    for client in clients:
        with suppress(Exception):  # an old server answers 503 while it has nothing to show
            client.get_metrics()
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = list(pool.map(lambda client: submit(client, count // CLIENTS), clients))
    return began, shares


def wait_for(client: PyocoHttpClient, run_id: str, pause: float, deadline: float) -> bool:
    """Whether it had to be waited for."""
    waited = False
    while (status := client.get_run(run_id)["status"]) != "COMPLETED":
        assert status not in FAILED, f"run {run_id} is {status}"
        if time.monotonic() > deadline:
            print(f"run {run_id} is still {status} after {PATIENCE_SEC:g} s", file=sys.stderr)
            sys.exit(HUNG)
        waited = True
        time.sleep(pause)
    return waited


def runs_per_second(url: str, runs: int) -> float:
    """The clock stops when the last ones of every client have ended, which are the last of all but for a few.

    Then, off the clock, every run is looked at. One that had still not ended starts the clock again.
    """
    client = PyocoHttpClient(url)
    began, shares = submit_all(url, runs)
    deadline = time.monotonic() + PATIENCE_SEC
    for run_id in sorted(run_id for share in shares for run_id in share[-2:]):
        wait_for(client, run_id, 0.01, deadline)
    ended = time.perf_counter()
    for run_id in (run_id for share in shares for run_id in share):
        if wait_for(client, run_id, 0.01, deadline):
            ended = time.perf_counter()
    return sum(map(len, shares)) / (ended - began)


def idle_latency(url: str, times: int) -> list[float]:
    client, taken = PyocoHttpClient(url), []
    for _ in range(times):
        deadline = time.monotonic() + PATIENCE_SEC
        began = time.perf_counter()
        wait_for(client, client.submit_run("tiny", {"x": 1})["run_id"], 0.001, deadline)
        taken.append(time.perf_counter() - began)
    return sorted(taken)


def list_latency(url: str, times: int) -> float:
    client, taken = PyocoHttpClient(url), []
    for _ in range(times):
        began = time.perf_counter()
        client.list_runs(limit=50)
        taken.append(time.perf_counter() - began)
    return sorted(taken)[len(taken) // 2]


if __name__ == "__main__":
    what, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "rate":
        print(json.dumps({"rate": runs_per_second(url, count)}))
    elif what == "idle":
        idle_latency(url, count // 5)
        taken = idle_latency(url, count)
        print(json.dumps({"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}))
    else:
        print(json.dumps({"list": list_latency(url, count)}))
