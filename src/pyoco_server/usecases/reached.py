"""How far a feed was read, and waiting for it to get somewhere."""

import asyncio

from pyoco_server.usecases.ports import Revision


class Reached:
    def __init__(self) -> None:
        self._seen = Revision(0)
        self._waiting: list[tuple[Revision, asyncio.Future[None]]] = []

    def reset(self) -> None:
        self._seen = Revision(0)

    def to(self, revision: Revision) -> None:
        self._seen = revision
        for wanted, waiter in self._waiting:
            if wanted <= revision and not waiter.done():
                waiter.set_result(None)
        self._waiting = [(wanted, waiter) for wanted, waiter in self._waiting if not waiter.done()]

    async def wait(self, revision: Revision, patience: float) -> None:
        """Until `revision` was read, or `patience` is over: people want to see what they did."""
        if self._seen >= revision:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, waiter))
        await asyncio.wait({waiter}, timeout=patience)
        waiter.cancel()
