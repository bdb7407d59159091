"""An event loop in which waiting takes no time: with nothing to do, the clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


STEP_SEC = 1e-6
"""Of doing something. Without it a timer that rounding makes fire a moment too early would do so for ever."""


class Stuck(Exception):
    """Everybody waits for somebody else."""


class _NoWaiting(selectors.SelectSelector):
    """Instead of waiting for sockets it moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck
        self.now += timeout or STEP_SEC
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _NoWaiting()
        super().__init__(self._clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, work: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """At once: a thread would come to its end whenever it likes."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            done.set_exception(error)
        return done


def run(main: Coroutine[Any, Any, T]) -> T:
    """`main` to its end, and everything that it left behind ended with it."""
    loop = VirtualLoop()
    loop.set_exception_handler(lambda _loop, _context: None)
    try:
        return loop.run_until_complete(main)
    finally:
        _end_all(loop)
        loop.close()


def virtually(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A test for which a machine that stands still for a while makes no difference."""

    @wraps(test)
    def runs(*arguments: P.args, **options: P.kwargs) -> T:
        return run(test(*arguments, **options))

    return runs


def _end_all(loop: VirtualLoop) -> None:
    for _ in range(10):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.wait(left, timeout=1))
    loop.run_until_complete(loop.shutdown_asyncgens())
