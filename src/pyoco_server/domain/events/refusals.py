"""Events refused for want of credentials: the first of a minute are recorded one by one, the rest counted.

Anybody can send them. Without a ceiling a stranger would fill the audit stream, whose oldest records make
room.
"""

from collections import Counter

from msgspec import Struct

WINDOW_SEC = 60.0
MAX_RECORDED = 60
"""In a window, by one gateway."""
MAX_OF_ADDRESS = 20
"""So that one address does not use up the records of all."""


class CountedRefusals(Struct, frozen=True):
    count: int
    since: float
    tenant_id: str | None


class RefusalWindow:
    def __init__(self) -> None:
        self._began = float("-inf")
        self._recorded: Counter[str | None] = Counter()
        self._counted = 0
        self._tenant_id: str | None = None

    def admits(self, address: str | None, tenant_id: str | None, now: float) -> bool:
        """Whether this one is recorded; otherwise it is counted. Call `rest` before: it ends a window."""
        if not 0 <= now - self._began < WINDOW_SEC and not self._counted:
            self._began = now
            self._recorded.clear()
        is_admitted = self._recorded.total() < MAX_RECORDED and self._recorded[address] < MAX_OF_ADDRESS
        if is_admitted:
            self._recorded[address] += 1
        else:
            self._counted += 1
            self._tenant_id = tenant_id
        return is_admitted

    def rest(self, now: float, *, is_stopping: bool = False) -> CountedRefusals | None:
        """What was counted in a window that is over."""
        if not self._counted or (0 <= now - self._began < WINDOW_SEC and not is_stopping):
            return None
        found = CountedRefusals(self._counted, self._began, self._tenant_id)
        self._counted = 0
        return found
