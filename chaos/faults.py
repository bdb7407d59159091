"""What is done to an installation while it works: at random moments, to random members, from a seed."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from members import Member

How = Literal["kill", "freeze", "cut"]
"""`cut`: off from the network, for members that are in one of their own."""


class Faults:
    """One after the other: a member is whole again before the next is hurt."""

    def __init__(
        self,
        members: Sequence[Member],
        chance: random.Random,
        *,
        how: Sequence[How] = ("kill", "freeze"),
        pause: tuple[float, float] = (0.2, 1.5),
        down: tuple[float, float] = (0.0, 1.0),
        frozen: tuple[float, float] = (0.5, 5.0),
        cut: tuple[float, float] = (1.0, 20.0),
    ) -> None:
        self._members = members
        self._chance = chance
        self._how = how
        self._pause = pause
        self._down = down
        self._frozen = frozen
        self._cut = cut
        self._stopping = asyncio.Event()
        self.done: Counter[str] = Counter()
        self.ended_alone: list[str] = []
        """Members that were found dead, though nobody had killed them."""

    async def run(self) -> None:
        while not self._stopping.is_set():
            await self._sleep(self._chance.uniform(*self._pause))
            if not self._stopping.is_set():
                await self._hurt(self._chance.choice(self._members), self._chance.choice(self._how))

    def stop(self) -> None:
        self._stopping.set()

    async def _hurt(self, member: Member, how: How) -> None:
        if not member.is_running:
            self.ended_alone.append(member.end)
            await member.start()
        self.done[f"{how} {member.kind}"] += 1
        if how == "kill":
            await member.kill()
            await asyncio.sleep(self._chance.uniform(*self._down))
            await member.start()
        elif how == "freeze":
            member.freeze()
            await asyncio.sleep(self._chance.uniform(*self._frozen))
            member.thaw()
        else:
            await self._cut_off(member)

    async def _cut_off(self, member: Member) -> None:
        assert member.where is not None
        member.where.cut()
        try:
            await asyncio.sleep(self._chance.uniform(*self._cut))
        finally:
            member.where.heal()

    async def _sleep(self, seconds: float) -> None:
        waiter = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({waiter}, timeout=seconds)
        waiter.cancel()
