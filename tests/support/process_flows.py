"""Flows for workers that are processes of their own. They speak to their test through files in `marks`."""

import ctypes
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyoco import Flow, task

PATIENCE_SEC = 60.0
"""How long a task waits for its test; only a broken test waits so long."""
LOOK_SEC = 0.01


def mark(marks: str, name: str) -> None:
    """Tells the test: `name` was reached, by this process."""
    path = Path(marks) / f".{name}.{os.getpid()}"
    path.write_text(str(os.getpid()))
    path.rename(Path(marks) / name)


def wait_for(marks: str, name: str, patience: float = PATIENCE_SEC) -> None:
    deadline = time.monotonic() + patience
    while not (Path(marks) / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(LOOK_SEC)


def steps() -> Flow:
    """Stops in its first task until the test lets it go on."""

    @task
    def first(ctx: Any, marks: str, until_cancelled: bool = False) -> str:  # noqa: FBT001, FBT002
        mark(marks, "in-first")
        if until_cancelled:  # so that the test knows that the cancel has arrived
            while not ctx.is_cancelled:
                time.sleep(LOOK_SEC)
        else:
            wait_for(marks, "go")
        return "first"

    @task
    def second(marks: str) -> str:
        mark(marks, "in-second")
        return "second"

    return Flow(name="steps") >> first >> second


def watchful() -> Flow:
    @task
    def watch(ctx: Any, marks: str) -> str:
        mark(marks, "in-watch")
        deadline = time.monotonic() + PATIENCE_SEC
        while not ctx.is_cancelled and time.monotonic() < deadline:
            time.sleep(LOOK_SEC)
        mark(marks, "saw-cancel")
        return "stopped"

    return Flow(name="watchful") >> watch


def stuck() -> Flow:
    """Never looks, never returns."""

    @task
    def sleep(marks: str) -> None:
        mark(marks, "in-sleep")
        time.sleep(10 * PATIENCE_SEC)

    return Flow(name="stuck") >> sleep


def hold_the_interpreter(seconds: float) -> None:
    """As a C extension does that computes without letting go of the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def holding() -> Flow:
    @task
    def hold(seconds: float, marks: str) -> str:
        mark(marks, "in-hold")
        hold_the_interpreter(seconds)
        return "held"

    return Flow(name="holding") >> hold


def tiny() -> Flow:
    @task
    def one(pause: float = 0.0) -> int:
        time.sleep(pause)
        return 1

    @task
    def two(one: int) -> int:
        return one + 1

    @task
    def three(two: int) -> int:
        return two + 1

    return Flow(name="tiny") >> one >> two >> three


def dying() -> Flow:
    @task
    def fine() -> str:
        return "fine"

    @task
    def die(how: str) -> None:
        match how:
            case "exit":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)

    return Flow(name="dying") >> fine >> die


_counted = itertools.count(1)


def who() -> Flow:
    """Which process ran it, and which of its runs it was."""

    @task
    def tell(megabytes: int = 0) -> dict[str, Any]:
        _kept.append(bytearray(os.urandom(1024)) * 1024 * megabytes)
        return {"pid": os.getpid(), "nth": next(_counted), "fds": len(list(Path("/proc/self/fd").iterdir()))}

    return Flow(name="who") >> tell


_kept: list[Any] = []


def talking() -> Flow:
    @task
    def first(marks: str) -> None:
        print("hello from first")  # noqa: T201
        mark(marks, "in-first")
        wait_for(marks, "go")

    @task
    def second() -> None:
        for number in range(20_000):
            print(f"line {number} " + "x" * 90)  # noqa: T201

    return Flow(name="talking") >> first >> second


def huge() -> Flow:
    """Its first task returns 1.5 million small dicts, which its second one gets."""

    @task
    def load() -> list[Any]:
        return [{"i": 0, "name": "row"}] * 1_500_000

    @task
    def count(load: list[Any], marks: str) -> int:
        mark(marks, "in-count")
        wait_for(marks, "go")
        return len(load)

    @task
    def rest(load: list[Any], whole: bool = False) -> Any:  # noqa: FBT001, FBT002
        return load if whole else len(load)

    return Flow(name="huge") >> load >> count >> rest


_FLOWS: dict[str, Callable[[], Flow]] = {
    maker.__name__: maker for maker in (steps, watchful, stuck, holding, tiny, dying, who, talking, huge)
}


def resolve(name: str) -> Flow:
    return _FLOWS[name]()
