"""Quantiles of many durations in little space: a histogram with buckets of equal relative width.

Two histograms are merged by adding their counts, so that a quantile of any selection of runs over any
stretch of time is as exact as one of a single minute: within `ERROR` of the duration that has this rank.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec import Struct

ERROR = 0.04
"""Relative error of a quantile. Records are half as large as with 0.02."""
LEAST_SEC = 0.001
"""Shorter durations count as 0."""
MOST_SEC = 30 * 86_400.0
"""Longer durations count as this."""
_GAMMA = (1 + ERROR) / (1 - ERROR)
_LOG_GAMMA = math.log(_GAMMA)

Sketch = tuple[int, ...]
"""Bucket, count, bucket, count and so on, by bucket."""
EMPTY: Sketch = ()


class Quantiles(Struct, frozen=True):
    """Seconds; null if none of the runs has such a time."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


def bucket_of(seconds: float) -> int:
    """Bucket n > 0 has durations above `LEAST_SEC * gamma ** (n - 2)`, up to `gamma` times as long."""
    if not seconds >= LEAST_SEC:  # also NaN
        return 0
    return 1 + max(0, math.ceil(math.log(min(seconds, MOST_SEC) / LEAST_SEC) / _LOG_GAMMA))


def seconds_of(bucket: int) -> float:
    """The value that is at most `ERROR` from every duration in the bucket."""
    return 0.0 if bucket == 0 else LEAST_SEC * _GAMMA ** (bucket - 1) * 2 / (1 + _GAMMA)


BUCKETS = bucket_of(MOST_SEC) + 1
"""How many there are."""


def sketch_of(counts: Counter[int]) -> Sketch:
    return tuple(chain.from_iterable(sorted(counts.items())))


def counts_of(sketches: Iterable[Sketch]) -> Counter[int]:
    """Those of several sketches together."""
    total: dict[int, int] = {}
    for sketch in sketches:
        for bucket, count in zip(sketch[::2], sketch[1::2], strict=True):
            total[bucket] = total.get(bucket, 0) + count
    return Counter(total)


def quantiles_of(counts: Counter[int]) -> Quantiles:
    total = counts.total()
    if not total:
        return Quantiles()
    ranks = [math.ceil(percent * total / 100) for percent in (50, 95, 99)]
    return Quantiles(*_at_ranks(counts, ranks))


def _at_ranks(counts: Counter[int], ranks: Sequence[int]) -> list[float]:
    found: list[float] = []
    passed = 0
    for bucket, count in sorted(counts.items()):
        passed += count
        while len(found) < len(ranks) and ranks[len(found)] <= passed:
            found.append(round(seconds_of(bucket), 6))
    return found
