"""A chain of three tiny tasks on Celery with Redis: state of every task kept and queryable."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from celery import Celery, chain

URL = os.environ["PEER_REDIS"]
CLIENTS = 16
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


def runs_per_second(runs):
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        results = [r for share in pool.map(lambda _: submit(runs // CLIENTS), range(CLIENTS)) for r in share]
    for result in results:
        assert result.get(timeout=300) == 3
    return len(results) / (time.perf_counter() - began)


def idle_latency(times):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        assert chain(one.s(), two.s(), three.s()).apply_async().get(timeout=60) == 3
        taken.append(time.perf_counter() - began)
    return sorted(taken)


if __name__ == "__main__":
    count = int(sys.argv[2])
    if sys.argv[1] == "rate":
        print(json.dumps({"rate": runs_per_second(count)}))
    else:
        idle_latency(10)
        taken = idle_latency(count)
        print(json.dumps({"p50": taken[len(taken) // 2], "p99": taken[int(len(taken) * 0.99)]}))
