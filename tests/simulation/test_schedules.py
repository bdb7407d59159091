"""Schedules in worlds of gateways that die between any two steps; timers are late and come twice.

See `seeds` for which worlds are tried.
"""

from typing import Any

import pytest

from pyoco_server.usecases.schedules.attend import AttendSchedule, Fired
from support.seeds import hurt_in, is_noticed, shares
from support.simulation import Odds, World, simulate


def world_of(seed: int) -> tuple[World, list[str]]:
    return simulate(seed, schedules=2, clients=0, odds=Odds(lost=0.02, unanswered=0.02, crash=0.002))


def has_its_schedules(world: World) -> None:
    assert len(world.schedule_clients.kept) == 2


@pytest.mark.parametrize("share", shares(5, slow=40, long=300, share=5))
def test_every_due_tick_has_one_record_and_at_most_one_run(share: range) -> None:
    hurt_in(share, world_of, "kill g", check=has_its_schedules)


def test_a_gateway_that_believes_every_timer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer proves only the write that it names; else runs are lost with the gateway that places them."""
    attend = AttendSchedule.__call__

    async def gullible(self: AttendSchedule, key: str, timer: Fired | None = None, **options: Any) -> Any:
        stored = await self._schedules.get(key)
        if timer is not None and stored is not None:
            timer = Fired(timer.id, stored.revision)
        return await attend(self, key, timer, **options)

    monkeypatch.setattr(AttendSchedule, "__call__", gullible)
    assert is_noticed(world_of, range(20))
