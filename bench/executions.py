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
from page import Figures, Goal, show, table

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


def chain_latency(whole: Installation, times: int) -> tuple[float, float]:
    """Milliseconds of a run alone and of a chain of three."""
    run = statistics.median(idle_latency(whole.url, "default"))
    with httpx2.Client(base_url=whole.url, timeout=30) as http:
        for _ in range(times // 5):
            one_execution(http, "chain")
        chain = statistics.median(one_execution(http, "chain") for _ in range(times))
    return run * 1000, chain * 1000


def throughput(whole: Installation, count: int) -> tuple[float, str]:
    """Executions a second, and the CPU milliseconds that each cost."""
    before, started = whole.cpu_seconds(), time.perf_counter()
    with httpx2.Client(base_url=whole.url, timeout=30) as http:
        already = _count(http, "COMPLETED")
        for _ in range(count):
            http.post("/executions", json={"graph_id": "fork"}).raise_for_status()
        wait_until(lambda: _count(http, "COMPLETED") == already + count)
    seconds, after = time.perf_counter() - started, whole.cpu_seconds()
    costs = ", ".join(f"{name} {(after[name] - before[name]) / count * 1e3:.1f}" for name in after)
    return count / seconds, costs


def _count(http: httpx2.Client, status: str) -> int:
    wanted = f'pyoco_executions{{status="{status}"}} '
    line = next(line for line in http.get("/metrics").text.splitlines() if line.startswith(wanted))
    return int(float(line.removeprefix(wanted)))


def parked_waits(whole: Installation, count: int, seconds: float) -> str:
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
    first = f"the first {len(inbox)} of the inbox in {looked * 1e3:.1f} ms"
    return f"gateway {used:.2%} CPU, {grown:+.0f} MB; {first}"


def measure(executions: int, waits: int, rest: float, times: int = 100, gateways: int = 1) -> Figures:
    with installation("fast", PYOCO_LOG_LEVEL="WARNING") as whole:
        for n in range(1, gateways):
            whole.start_gateway(f"gateway {n + 1}")
        whole.start_worker("w1", "--concurrency", "8")
        with httpx2.Client(base_url=whole.url) as http:
            register(http)
        run, chain = chain_latency(whole, times)
        rate, costs = throughput(whole, executions)
        waiting = parked_waits(whole, waits, rest)
    rows = [
        ("one run, p50", f"{run:.1f} ms"),
        ("a chain of three task nodes, p50", f"{chain:.1f} ms"),
        (f"{executions:,} graphs of 5 nodes", f"{rate:.0f} a second; CPU ms each: {costs}"),
        (f"{waits:,} executions that wait", waiting),
    ]
    allowed = 3 * run + 10
    goal = Goal(
        "a chain of three nodes, p50",
        f"≤ 3 runs + 10 ms = {allowed:.1f} ms",
        f"{chain:.1f} ms",
        chain <= allowed,
    )
    return Figures(table(("executions", ""), rows), [goal])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=500)
    parser.add_argument("--waits", type=int, default=10_000)
    parser.add_argument("--rest", type=float, default=10.0, help="seconds to look at what waiting costs")
    parser.add_argument("--gateways", type=int, default=1, help="only the first has requests")
    wanted = parser.parse_args()
    show(measure(wanted.executions, wanted.waits, wanted.rest, gateways=wanted.gateways))


if __name__ == "__main__":
    main()
