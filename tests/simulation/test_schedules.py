"""Schedules in worlds of gateways that die between any two steps; timers are late and come twice."""

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from support.simulation import Odds, World, simulate

SEEDS = int(os.environ.get("PYOCO_TEST_SEEDS", "30"))
ONLY = os.environ.get("PYOCO_TEST_SEED")
SHARE = 10


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def seeds() -> list[range]:
    if ONLY is not None:
        return [range(int(ONLY), int(ONLY) + 1)]
    return [range(start, min(start + SHARE, SEEDS)) for start in range(0, SEEDS, SHARE)]


def world_of(seed: int) -> tuple[World, list[str]]:
    return simulate(seed, schedules=2, clients=0, odds=Odds(lost=0.02, unanswered=0.02, crash=0.002))


@pytest.mark.parametrize("share", seeds(), ids=lambda share: f"{share.start}-{share.stop - 1}")
def test_every_due_tick_has_one_record_and_at_most_one_run(share: range) -> None:
    hurt: Counter[str] = Counter()
    for seed in share:
        world, broken = world_of(seed)
        assert broken == [], f"PYOCO_TEST_SEED={seed}: {broken[:5]}"
        assert len(world.schedule_clients.kept) == 2
        hurt += world.hurt
    if len(share) > 5:
        assert hurt["kill g"]
