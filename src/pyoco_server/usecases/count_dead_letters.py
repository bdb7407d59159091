"""How many dead letters there are, asked for at most once in a while: scrapes must not load the server."""

from pyoco_server.usecases.ports import DeadLetters

FRESH_SEC = 5.0


class CountDeadLetters:
    def __init__(self, dead_letters: DeadLetters) -> None:
        self._dead_letters = dead_letters
        self._count = 0
        self._asked_at: float | None = None

    async def __call__(self, now: float) -> int:
        if self._asked_at is None or now - self._asked_at > FRESH_SEC:
            self._count = await self._dead_letters.count()
            self._asked_at = now
        return self._count
