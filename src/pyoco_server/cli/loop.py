"""The event loop of our processes: uvloop where it exists, because it halves the cost of a request."""

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GC_THRESHOLDS = (10_000, 20, 20)
"""By default everything young is looked through for every 700 new objects: several times per run."""


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop  # noqa: PLC0415 - there is none on Windows
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve(main: Coroutine[Any, Any, T]) -> T:
    """Like `run`, for what lives long and makes much short-lived garbage, hardly any of it in cycles."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return run(main)


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)
