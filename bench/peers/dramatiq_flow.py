"""A pipeline of three tiny actors on dramatiq with Redis: the result of every one kept and queryable."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import ResultMissing, Results, ResultTimeout
from dramatiq.results.backends import RedisBackend

URL = os.environ["PEER_REDIS"]
CLIENTS = 16
PATIENCE_SEC = 60
HUNG = 3
"""The exit code that says so to bench/peers.py."""
broker = RedisBroker(url=URL)
# By default a connection gives up after five seconds, also one that waits for a result on purpose.
broker.add_middleware(Results(backend=RedisBackend(url=URL, socket_timeout=2 * PATIENCE_SEC)))
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


def wait_for(pipe):
    """Whether it had to be waited for."""
    try:
        assert pipe.get_result() == 3
    except ResultMissing:
        assert pipe.get_result(block=True, timeout=PATIENCE_SEC * 1000) == 3
        return True
    return False


def runs_per_second(runs):
    """As in pyoco_driver.py: the last ones on the clock, then a look at every one."""
    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = list(pool.map(lambda _: submit(runs // CLIENTS), range(CLIENTS)))
    for share in shares:
        for pipe in share[-2:]:
            wait_for(pipe)
    ended = time.perf_counter()
    for share in shares:
        for pipe in share:
            if wait_for(pipe):
                ended = time.perf_counter()
    return sum(map(len, shares)) / (ended - began)


def idle_latency(times):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        assert submit(1)[0].get_result(block=True, timeout=PATIENCE_SEC * 1000) == 3
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
    except ResultTimeout as late:
        print(f"a pipeline has not ended after {PATIENCE_SEC} s: {late}", file=sys.stderr)
        sys.exit(HUNG)
