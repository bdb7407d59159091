"""The store's clock: this machine's."""

import time


class MemoryTime:
    async def now(self) -> float:
        return time.time()
