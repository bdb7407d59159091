"""The worker: takes jobs, runs their flows, writes what becomes of them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyoco_server.wiring.worker import PyocoNatsWorker


__all__ = ["PyocoNatsWorker"]


def __getattr__(name: str) -> Any:
    """`PyocoNatsWorker` is put together in `wiring`, which imports this package."""
    if name != "PyocoNatsWorker":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyoco_server.wiring import worker  # noqa: PLC0415

    return worker.PyocoNatsWorker
