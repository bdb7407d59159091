"""A pipeline of three tiny actors on dramatiq with Redis: the result of every one kept and queryable."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

URL = os.environ["PEER_REDIS"]
CLIENTS = 16
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def one():
    return 1


@dramatiq.actor(store_results=True)
def two(value):
    return value + 1


@dramatiq.actor(store_results=True)
def three(value):
    return value + 1


def submit(count):
    return [(one.message() | two.message() | three.message()).run() for _ in range(count)]


def runs_per_second(runs):
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        pipes = [p for share in pool.map(lambda _: submit(runs // CLIENTS), range(CLIENTS)) for p in share]
    for pipe in pipes:
        assert pipe.get_result(block=True, timeout=300_000) == 3
    return len(pipes) / (time.perf_counter() - began)


def idle_latency(times):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        pipe = (one.message() | two.message() | three.message()).run()
        assert pipe.get_result(block=True, timeout=60_000) == 3
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
