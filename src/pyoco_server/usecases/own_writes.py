"""Read your own writes: a list asked for after a submit at the same gateway shows the submitted run."""

from pyoco_server.usecases.follow_runs import FollowRuns
from pyoco_server.usecases.ports import Revision

PATIENCE_SEC = 0.25
"""The feed is normally a millisecond behind; when it is not, an older list now is better than a late one."""


class OwnWrites:
    def __init__(self, follower: FollowRuns) -> None:
        self._follower = follower
        self._latest = Revision(0)

    def wrote(self, revision: Revision) -> None:
        self._latest = max(self._latest, revision)

    async def are_visible(self) -> None:
        """A write that never comes (say, the bucket was made anew) is waited for once, not by every list."""
        wanted = self._latest
        await self._follower.reached(wanted, PATIENCE_SEC)
        if self._latest == wanted:
            self._latest = Revision(0)
