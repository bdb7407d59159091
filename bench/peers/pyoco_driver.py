"""Sixteen clients of a pyoco-server, new or old: its own HTTP client, in threads of one process."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyoco_server.http_client import PyocoHttpClient

CLIENTS = 16


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


def wait_for(client: PyocoHttpClient, run_id: str, pause: float) -> None:
    while client.get_run(run_id)["status"] != "COMPLETED":
        time.sleep(pause)


def runs_per_second(url: str, runs: int) -> float:
    client = PyocoHttpClient(url)
    began, shares = submit_all(url, runs)
    # The last ones end last; then every one is looked at.
    for run_id in sorted(run_id for share in shares for run_id in share[-2:]):
        wait_for(client, run_id, 0.01)
    rate = sum(map(len, shares)) / (time.perf_counter() - began)
    for share in shares:
        wait_for(client, share[0], 0.01)
    return rate


def idle_latency(url: str, times: int) -> list[float]:
    client, taken = PyocoHttpClient(url), []
    for _ in range(times):
        began = time.perf_counter()
        wait_for(client, client.submit_run("tiny", {"x": 1})["run_id"], 0.001)
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
