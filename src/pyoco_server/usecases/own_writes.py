"""Read your own writes: a list asked for after a submit at the same gateway shows the submitted run."""

from pyoco_server.usecases.follow_runs import FollowRuns
from pyoco_server.usecases.ports import Revision

PATIENCE_SEC = 0.25
"""The feed is normally a millisecond behind; when it is not, an older list now is better than a late one."""


class OwnWrites:
    def __init__(self, follower: FollowRuns) -> None:
        self._follower = follower
        self._latest = Revision(0)
        self._resets = follower.resets

    def wrote(self, revision: Revision) -> None:
        self._forget_other_store()
        self._latest = max(self._latest, revision)

    def _forget_other_store(self) -> None:
        if self._resets != self._follower.resets:
            self._resets, self._latest = self._follower.resets, Revision(0)

    async def are_visible(self) -> None:
        self._forget_other_store()
        await self._follower.reached(self._latest, PATIENCE_SEC)
