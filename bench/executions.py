"""What orchestration costs: a chain of task nodes against single runs, many graphs at once, waits at rest.

Real processes: NATS, one gateway, one worker.
"""

import argparse
import statistics
import time
from typing import Any

import httpx2

from end_to_end import idle_latency
from installation import Installation, installation, wait_until

CHAIN: dict[str, Any] = {
    "nodes": {name: {"type": "task", "flow": "tiny"} for name in "abc"},
    "edges": [{"from": "a", "to": "b"}, {"from": "b", "to": "c"}],
}
FORK: dict[str, Any] = {
    "nodes": {
        "first": {"type": "task", "flow": "tiny"},
        "split": {"type": "fork"},
        "left": {"type": "task", "flow": "tiny"},
        "right": {"type": "task", "flow": "tiny"},
        "gather": {"type": "join"},
    },
    "edges": [
        {"from": "first", "to": "split"},
        {"from": "split", "to": "left"},
        {"from": "split", "to": "right"},
        {"from": "left", "to": "gather"},
        {"from": "right", "to": "gather"},
    ],
}
WAIT: dict[str, Any] = {"nodes": {"ask": {"type": "wait", "prompt": "go on?", "timeout_sec": 86400}}}


def register(http: httpx2.Client) -> None:
    for name, definition in (("chain", CHAIN), ("fork", FORK), ("wait", WAIT)):
        http.put(f"/graphs/{name}", json=definition).raise_for_status()


def one_execution(http: httpx2.Client, graph_id: str) -> float:
    """Seconds from the POST to the event of its end."""
    started = time.perf_counter()
    execution_id = http.post("/executions", json={"graph_id": graph_id}).json()["execution_id"]
    with http.stream("GET", f"/executions/{execution_id}/watch") as response:
        for line in response.iter_lines():
            if line.startswith("event: EXECUTION_COMPLETED"):
                break
    return time.perf_counter() - started


def chain_latency(whole: Installation) -> None:
    run = statistics.median(idle_latency(whole.url, "default"))
    with httpx2.Client(base_url=whole.url, timeout=30) as http:
        for _ in range(20):
            one_execution(http, "chain")
        chain = statistics.median(one_execution(http, "chain") for _ in range(100))
    allowed = 3 * run + 0.010
    print(
        f"  one run {run * 1e3:.1f} ms, a chain of three {chain * 1e3:.1f} ms; "
        f"3 runs + 10 ms = {allowed * 1e3:.1f} ms, ratio {chain / allowed:.2f}"
    )


def throughput(whole: Installation, count: int) -> None:
    before, started = whole.cpu_seconds(), time.perf_counter()
    with httpx2.Client(base_url=whole.url, timeout=30) as http:
        already = _count(http, "COMPLETED")
        for _ in range(count):
            http.post("/executions", json={"graph_id": "fork"}).raise_for_status()
        wait_until(lambda: _count(http, "COMPLETED") == already + count)
    seconds, after = time.perf_counter() - started, whole.cpu_seconds()
    costs = "  ".join(f"{name} {(after[name] - before[name]) / count * 1e3:.1f}" for name in after)
    print(f"  {count} graphs of 5 nodes: {count / seconds:.0f}/s    CPU ms per execution: {costs}")


def _count(http: httpx2.Client, status: str) -> int:
    wanted = f'pyoco_executions{{status="{status}"}} '
    line = next(line for line in http.get("/metrics").text.splitlines() if line.startswith(wanted))
    return int(float(line.removeprefix(wanted)))


def parked_waits(whole: Installation, count: int, seconds: float) -> None:
    memory = whole.rss_mb()["gateway"]
    with httpx2.Client(base_url=whole.url, timeout=30) as http:
        for _ in range(count):
            http.post("/executions", json={"graph_id": "wait"}).raise_for_status()
        wait_until(lambda: _count(http, "ACTIVE") == count)
        time.sleep(2)
        before = whole.cpu_seconds()["gateway"]
        time.sleep(seconds)
        used = (whole.cpu_seconds()["gateway"] - before) / seconds
        started = time.perf_counter()
        inbox = http.get("/waits", params={"limit": 200}).json()["items"]
        looked = time.perf_counter() - started
    grown = whole.rss_mb()["gateway"] - memory
    print(
        f"  {count} waiting: gateway {used:.2%} CPU, {grown:+.0f} MB; "
        f"the first {len(inbox)} of the inbox in {looked * 1e3:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=500)
    parser.add_argument("--waits", type=int, default=10_000)
    parser.add_argument("--rest", type=float, default=10.0, help="seconds to look at what waiting costs")
    wanted = parser.parse_args()
    with installation("fast", PYOCO_LOG_LEVEL="WARNING") as whole:
        whole.start_worker("w1", "--concurrency", "8")
        with httpx2.Client(base_url=whole.url) as http:
            register(http)
        chain_latency(whole)
        throughput(whole, wanted.executions)
        parked_waits(whole, wanted.waits, wanted.rest)


if __name__ == "__main__":
    main()
