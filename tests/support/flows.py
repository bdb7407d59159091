"""Real pyoco flows. Each call makes new ones: pyoco's tasks remember the flows they were part of."""

import threading
from collections.abc import Callable
from typing import Any

from pyoco import Flow, task
from pyoco.dsl.syntax import switch

PATIENCE_SEC = 60.0
"""How long a flow waits for its test; only a broken test waits so long."""


def chain() -> Flow:
    """3 tasks: numbers, their squares, the sum."""

    @task
    def numbers(n: int = 3) -> list[int]:
        return list(range(1, n + 1))

    @task
    def squares(numbers: list[int]) -> list[int]:
        return [number * number for number in numbers]

    @task
    def total(squares: list[int]) -> int:
        return sum(squares)

    return Flow(name="chain") >> numbers >> squares >> total


def failing(secret: str = "") -> Flow:
    @task
    def fine() -> str:
        return "ok"

    @task
    def breaks() -> None:
        raise ValueError(f"broken on purpose {secret}".strip())

    @task
    def never() -> None:
        raise AssertionError("not reached")

    return Flow(name="failing") >> fine >> breaks >> never


def exiting() -> Flow:
    @task
    def leave() -> None:
        raise SystemExit(3)

    return Flow(name="exiting") >> leave


def retrying(failures: int) -> Flow:
    attempts: list[int] = []

    @task
    def flaky() -> int:
        attempts.append(1)
        if len(attempts) <= failures:
            raise ConnectionError(f"attempt {len(attempts)}")
        return len(attempts)

    flaky.task.retries = 1
    return Flow(name="retrying") >> flaky


def isolated() -> Flow:
    """Its first branch fails and is isolated; the other goes on."""

    @task
    def bad() -> None:
        raise ValueError("isolated")

    @task
    def after_bad(bad: Any) -> None:
        raise AssertionError("not reached")

    @task
    def good() -> str:
        return "good"

    bad.task.fail_policy = "isolate"
    flow = Flow(name="isolated") >> bad >> after_bad
    flow.add_task(good.task)
    return flow


def parallel() -> Flow:
    """Both branches must run at once, or neither gets past the barrier."""
    barrier = threading.Barrier(2, timeout=PATIENCE_SEC)

    @task
    def left() -> str:
        barrier.wait()
        return "l"

    @task
    def right() -> str:
        barrier.wait()
        return "r"

    @task
    def join(left: str, right: str) -> str:
        return left + right

    return Flow(name="parallel") >> (left & right) >> join


def choosing() -> Flow:
    """Control flow: its last task is known only when it has run."""

    @task
    def start() -> str:
        return "started"

    @task
    def on_a() -> str:
        return "a was chosen"

    @task
    def on_b() -> str:
        return "b was chosen"

    return Flow(name="choosing") >> start >> switch("$ctx.params.way")["A" >> on_a, "B" >> on_b]


def returning(value: Any) -> Flow:
    @task
    def give() -> Any:
        return value

    return Flow(name="returning") >> give


def passing_on(value: Any) -> Flow:
    """The output of its first task is the input of the second."""

    @task
    def give() -> Any:
        return value

    @task
    def take(give: Any) -> Any:
        return give

    @task
    def done(take: Any) -> str:
        return "done"

    return Flow(name="passing_on") >> give >> take >> done


class Gate:
    """A flow of two tasks that stops in its first until the test opens the gate."""

    def __init__(self, on_entered: Callable[[], None] = lambda: None) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.entries = 0
        self._on_entered = on_entered

    def open(self) -> None:
        self.opened.set()

    def flow(self) -> Flow:
        @task
        def wait() -> str:
            self.entries += 1
            self.entered.set()
            self._on_entered()
            if not self.opened.wait(PATIENCE_SEC):
                raise TimeoutError("nobody opened the gate")
            return "through"

        @task
        def after(wait: str) -> str:
            return f"after {wait}"

        return Flow(name="gated") >> wait >> after
