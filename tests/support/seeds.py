"""The worlds of a simulation: some in `make test`, more by `make test-worlds` (`slow`), the others `long`.

PYOCO_TEST_SEEDS=10000 tries so many; PYOCO_TEST_SEED=1234 tries one again.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

ENOUGH = 5
"""In more worlds than these everything that can happen has happened somewhere."""


Simulate = Callable[[int], tuple[Any, list[str]]]
"""A world from a seed, and the promises that were broken in it."""


def hurt_in(
    share: Sequence[int], simulate: Simulate, *must_happen: str, check: Callable[[Any], None] | None = None
) -> Counter[str]:
    """What happened in these worlds, in each of which every promise held. `check`: more, of each world."""
    hurt: Counter[str] = Counter()
    for seed in share:
        world, broken = simulate(seed)
        assert broken == [], f"PYOCO_TEST_SEED={seed}: {broken[:5]}"
        if check is not None:
            check(world)
        hurt += world.hurt
    if len(share) > ENOUGH:
        assert [what for what in must_happen if not hurt[what]] == []
    return hurt


def is_noticed(simulate: Simulate, seeds: Iterable[int]) -> bool:
    """Whether a promise is broken in one of these worlds."""
    return any(simulate(seed)[1] for seed in seeds)


def shares(every_day: int, *, slow: int, long: int, share: int) -> list[Any]:
    """Ranges of `share` seeds each, as parameters of a test. `slow`, `long`: where the marks end."""
    one, asked = os.environ.get("PYOCO_TEST_SEED"), os.environ.get("PYOCO_TEST_SEEDS")
    if one is not None:
        return [pytest.param(range(int(one), int(one) + 1), id=one)]
    last = int(asked or long)

    def marks(start: int) -> list[pytest.MarkDecorator]:
        if asked is not None or start < every_day:
            return []
        return [pytest.mark.slow if start < slow else pytest.mark.long]

    return [
        pytest.param(
            range(start, stop := min(start + share, last)), id=f"{start}-{stop - 1}", marks=marks(start)
        )
        for start in range(0, last, share)
    ]
