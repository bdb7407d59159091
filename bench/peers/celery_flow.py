"""A chain of three tiny tasks on Celery with Redis: state of every task kept and queryable."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from celery import Celery, chain
from celery.exceptions import TimeoutError as NotInTime

URL = os.environ["PEER_REDIS"]
CLIENTS = 16
PATIENCE_SEC = 60
HUNG = 3
"""The exit code that says so to bench/peers.py."""
app = Celery("celery_flow", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 16


@app.task
def one():
    return 1


@app.task
def two(value):
    return value + 1


@app.task
def three(value):
    return value + 1


def submit(count):
    return [chain(one.s(), two.s(), three.s()).apply_async() for _ in range(count)]


def wait_for(result):
    """Whether it had to be waited for."""
    waited = not result.ready()
    assert result.get(timeout=PATIENCE_SEC) == 3
    return waited


def runs_per_second(runs):
    """As in pyoco_driver.py: the last ones on the clock, then a look at every one."""
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = list(pool.map(lambda _: submit(runs // CLIENTS), range(CLIENTS)))
    for share in shares:
        for result in share[-2:]:
            wait_for(result)
    ended = time.perf_counter()
    for share in shares:
        for result in share:
            if wait_for(result):
                ended = time.perf_counter()
    return sum(map(len, shares)) / (ended - began)


def idle_latency(times):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        assert submit(1)[0].get(timeout=PATIENCE_SEC) == 3
        taken.append(time.perf_counter() - began)
    return sorted(taken)


def main():
    count = int(sys.argv[2])
    if sys.argv[1] == "rate":
        print(json.dumps({"rate": runs_per_second(count)}))
    else:
        idle_latency(count // 5)
        taken = idle_latency(count)
        print(json.dumps({"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}))


if __name__ == "__main__":
    try:
        main()
    except NotInTime as late:
        print(f"a chain has not ended after {PATIENCE_SEC} s: {late}", file=sys.stderr)
        sys.exit(HUNG)
