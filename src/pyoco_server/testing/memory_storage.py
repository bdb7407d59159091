"""Whether memory stores what is written, unless somebody says otherwise."""

from pyoco_server.errors import NatsUnavailable


class MemoryStorage:
    def __init__(self) -> None:
        self.is_full = False

    async def check(self) -> None:
        if self.is_full:
            raise NatsUnavailable("nats unavailable: no space left")
