"""Tasks that are `async def`: awaited in their run's own event loop."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import CoroutineType
from typing import Any, Self

from pyoco_server.engine.printing import speaks_for

_here = threading.local()
"""`loop`: that of the run which the thread is in."""


class RunLoop:
    """One event loop per run, made for its first async task and closed at its end.

    A chain runs in the run's own thread, which then also runs the loop. pyoco's pool runs tasks in several
    threads at once: these share a loop in a thread of its own, so that what one task opens another can use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None
        self._home = 0

    def __enter__(self) -> Self:
        self._home = threading.get_ident()
        entered_loop(self)
        return self

    def __exit__(self, *_: object) -> None:
        entered_loop(None)
        if self._runner is None:
            return
        if self._thread is not None:
            loop = self._runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
        self._runner.close()

    def complete(self, work: Coroutine[Any, Any, Any]) -> Any:
        if threading.get_ident() == self._home:
            return self._opened().run(work)
        with self._lock:
            loop = self._opened().get_loop()
            if self._thread is None:
                self._thread = threading.Thread(target=_run_forever, args=[loop], name="pyoco-async")
                self._thread.start()
        speaks_for.set(threading.get_ident())
        return asyncio.run_coroutine_threadsafe(_contained(work), loop).result()()

    def _opened(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner


def entered_loop(loop: RunLoop | None) -> None:
    """The calling thread is in a task of that loop's run from now on."""
    _here.loop = loop


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of a callable object
    )


def awaited(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """`function` as one that returns what it returns once it is awaited."""

    def call(**inputs: Any) -> Any:
        loop: RunLoop = _here.loop
        return loop.complete(function(**inputs))

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    call.__name__ = getattr(function, "__name__", "call")
    return call


def is_never_awaited(value: Any) -> bool:
    """A coroutine that a task returned and nobody has begun."""
    return type(value) is CoroutineType and inspect.getcoroutinestate(value) == inspect.CORO_CREATED


def close_never_awaited(values: Iterable[Any]) -> None:
    """Its run has failed for it: Python need not complain as well."""
    for value in values:
        if is_never_awaited(value):
            value.close()


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _contained(work: Coroutine[Any, Any, Any]) -> Callable[[], Any]:
    """What it returned or raised. A SystemExit would end the loop, and with it the other tasks."""
    try:
        result = await work
    except (SystemExit, KeyboardInterrupt) as error:
        raised = error
    else:
        return lambda: result

    def fail() -> Any:
        raise raised

    return fail
