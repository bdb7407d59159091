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


@pytest.mark.parametrize("share", shares(5, slow=40, long=300, share=5))
def test_every_due_tick_has_one_record_and_at_most_one_run(share: range) -> None:
    healthy_ticks = 0

    def check(world: World) -> None:
        nonlocal healthy_ticks
        assert len(world.schedule_clients.kept) == 2
        healthy_ticks += world.schedule_clients.healthy_ticks

    hurt_in(share, world_of, "kill g", check=check)
    assert healthy_ticks or len(share) == 1, "none whose lateness was looked at"


def test_late_ticks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "_lateness", lambda _: 2.0)
    assert any("late in a healthy world" in one for seed in range(10) for one in world_of(seed)[1])


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
