"""Schedules in worlds of gateways that die between any two steps; timers are late and come twice.

The first worlds are for every day, the others are marked `long`. PYOCO_TEST_SEED=1234 tries one again.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pyoco_server.usecases.schedules.attend import AttendSchedule, Fired
from support.simulation import Odds, World, simulate

ASKED = os.environ.get("PYOCO_TEST_SEEDS")
SEEDS = int(ASKED or "300")
EVERY_DAY = SEEDS if ASKED else 20
ONLY = os.environ.get("PYOCO_TEST_SEED")
SHARE = 20


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def shares() -> list[Any]:
    if ONLY is not None:
        return [pytest.param(range(int(ONLY), int(ONLY) + 1), id=ONLY)]
    return [
        pytest.param(
            range(start, stop := min(start + SHARE, SEEDS)),
            id=f"{start}-{stop - 1}",
            marks=[pytest.mark.long] if start >= EVERY_DAY else [],
        )
        for start in range(0, SEEDS, SHARE)
    ]


def world_of(seed: int) -> tuple[World, list[str]]:
    return simulate(seed, schedules=2, clients=0, odds=Odds(lost=0.02, unanswered=0.02, crash=0.002))


@pytest.mark.parametrize("share", shares())
def test_every_due_tick_has_one_record_and_at_most_one_run(share: range) -> None:
    hurt: Counter[str] = Counter()
    for seed in share:
        world, broken = world_of(seed)
        assert broken == [], f"PYOCO_TEST_SEED={seed}: {broken[:5]}"
        assert len(world.schedule_clients.kept) == 2
        hurt += world.hurt
    if len(share) > 5:
        assert hurt["kill g"]


def test_a_gateway_that_believes_every_timer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer proves only the write that it names; else runs are lost with the gateway that places them."""
    attend = AttendSchedule.__call__

    async def gullible(self: AttendSchedule, key: str, timer: Fired | None = None, **options: Any) -> Any:
        stored = await self._schedules.get(key)
        if timer is not None and stored is not None:
            timer = Fired(timer.id, stored.revision)
        return await attend(self, key, timer, **options)

    monkeypatch.setattr(AttendSchedule, "__call__", gullible)
    assert any(world_of(seed)[1] for seed in range(EVERY_DAY))
