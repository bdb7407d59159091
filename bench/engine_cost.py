"""What a run of a small chain costs in the engine: with pyoco's thread pool, and handed over as a program.

python bench/engine_cost.py [runs]
"""

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from pyoco import Flow, task
from pyoco.core.engine import Engine
from pyoco.trace.backend import TraceBackend

from pyoco_server.engine.flow_plan import without_thread_pool

ROUNDS = 5


class Silent(TraceBackend):  # type: ignore[misc]  # pyoco ships no types
    def on_flow_start(self, flow_name: str, run_id: str | None = None) -> None: ...
    def on_flow_end(self, flow_name: str) -> None: ...
    def on_node_start(self, node_name: str) -> None: ...
    def on_node_end(self, node_name: str, duration_ms: float) -> None: ...
    def on_node_error(self, node_name: str, error: Exception) -> None: ...


def chain() -> Flow:
    @task
    def numbers(n: int) -> list[int]:
        return list(range(n))

    @task
    def squares(numbers: list[int]) -> list[int]:
        return [number * number for number in numbers]

    @task
    def total(squares: list[int]) -> int:
        return sum(squares)

    return Flow(name="chain") >> numbers >> squares >> total


def milliseconds(prepare: Callable[[Flow], Any], runs: int) -> float:
    flow = chain()
    started = time.perf_counter()
    for _ in range(runs):
        Engine(trace_backend=Silent()).run(prepare(flow), {"n": 5})
    return (time.perf_counter() - started) / runs * 1000


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for name, prepare in (("thread pool", lambda flow: flow), ("inline", without_thread_pool)):
        taken = [milliseconds(prepare, runs) for _ in range(ROUNDS)]
        print(f"{name:12} {statistics.median(taken):.3f} ms per run of 3 tasks (median of {ROUNDS})")


if __name__ == "__main__":
    main()
