"""The worlds of a simulation: some in `make test`, more by `make test-worlds` (`slow`), the others `long`.

PYOCO_TEST_SEEDS=10000 tries so many; PYOCO_TEST_SEED=1234 tries one again.
"""

import os
from typing import Any

import pytest


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
