"""Signals of foreign writes: none."""

from collections.abc import Awaitable, Callable


class MemorySignals:
    """No hints at all: who uses them must also look for himself."""

    async def on_foreign_write(
        self,
        run_id: str,  # noqa: ARG002
        callback: Callable[[], None],  # noqa: ARG002
    ) -> Callable[[], Awaitable[None]]:
        async def stop() -> None:
            pass

        return stop
