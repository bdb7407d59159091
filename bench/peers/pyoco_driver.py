"""Sixteen clients of a pyoco-server, new or old: its own HTTP client, in threads of one process."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from pyoco_server.http_client import PyocoHttpClient

CLIENTS = 16
FEWEST = 5
"""Runs that make a rate."""
PATIENCE_SEC = 20.0
"""And a twentieth of a second for every run that was submitted: slower than any server that works."""
HUNG = 3
"""The exit code that says so to bench/peers.py."""
FAILED = {"FAILED", "CANCELLED"}


class HasHung(Exception):
    """A run was accepted and does not end."""


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
            raise HasHung(f"a run is still {status}")
        waited = True
        time.sleep(pause)
    return waited


def runs_per_second(url: str, runs: int) -> dict[str, float]:
    """The clock stops when the last ones of every client have ended, which are the last of all but for a few.

    Then, off the clock, every run is looked at. One that had still not ended starts the clock again.
    """
    client, began_at = PyocoHttpClient(url), time.time()
    began, shares = submit_all(url, runs)
    ids = [run_id for share in shares for run_id in share]
    deadline = time.monotonic() + PATIENCE_SEC + runs / 20
    try:
        for run_id in sorted(run_id for share in shares for run_id in share[-2:]):
            wait_for(client, run_id, 0.01, deadline)
        ended = time.perf_counter()
        for run_id in ids:
            if wait_for(client, run_id, 0.01, deadline):
                ended = time.perf_counter()
    except HasHung as why:
        return until_it_hung(client, ids, began_at, str(why))
    return {"rate": len(ids) / (ended - began)}


def until_it_hung(client: PyocoHttpClient, ids: list[str], began_at: float, why: str) -> dict[str, float]:
    """What it did before, by its own times: the waiting is not held against it."""
    done = [run for run in map(client.get_run, ids) if run["status"] == "COMPLETED"]
    print(f"{why}; {len(done)} of {len(ids)} have ended", file=sys.stderr)
    if len(done) < FEWEST:
        sys.exit(HUNG)
    return {"rate": len(done) / (max(run["updated_at"] for run in done) - began_at), "ended": len(done)}


def idle_latency(url: str, times: int) -> list[float]:
    client, taken = PyocoHttpClient(url), []
    for _ in range(times):
        deadline = time.monotonic() + PATIENCE_SEC
        began = time.perf_counter()
        wait_for(client, client.submit_run("tiny", {"x": 1})["run_id"], 0.001, deadline)
        taken.append(time.perf_counter() - began)
    return sorted(taken)


def list_latency(url: str, times: int) -> dict[str, float]:
    """Of the lists that were answered: an old server also answers 503."""
    client, taken = PyocoHttpClient(url), []
    for _ in range(times):
        began = time.perf_counter()
        with suppress(Exception):
            client.list_runs(limit=50)
            taken.append(time.perf_counter() - began)
    assert taken, f"none of {times} lists was answered"
    return {"list": sorted(taken)[len(taken) // 2], "answered": len(taken)}


def main() -> None:
    what, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "rate":
        print(json.dumps(runs_per_second(url, count)))
    elif what == "idle":
        idle_latency(url, count // 5)
        taken = idle_latency(url, count)
        print(json.dumps({"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}))
    else:
        print(json.dumps(list_latency(url, count)))


if __name__ == "__main__":
    try:
        main()
    except HasHung as why:
        print(why, file=sys.stderr)
        sys.exit(HUNG)
