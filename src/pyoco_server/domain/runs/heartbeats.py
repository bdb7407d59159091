"""How often a worker writes the heartbeats of its runs, so that those of a whole fleet stay few.

Workers do not know each other, but they share the bucket of runs: its sequence counts the writes of all. A
worker may spend on heartbeats the same part of its own writes as the limit is of all writes. These parts add
up to the limit, however the runs are spread.
"""

FLEET_BEATS_PER_SEC = 80.0
"""Limit for the heartbeats of all running runs; they fluctuate, and 100 are too many."""
LONGEST_SEC = 20.0
"""No run is silent for longer: a sweep, also of an older gateway, checks every 30 s what has not changed."""


def interval_sec(base: float, current: float, *, running: int, own_writes: float, all_writes: float) -> float:
    """The next interval of a worker, at least `base`.

    `running`: its runs. `own_writes`: what it writes per second beside heartbeats; `all_writes`: what all
    write, with heartbeats. An interval grows at once and shrinks by half at most: bursts must not shake it.
    """
    own_beats = running / current
    if not own_beats:
        return base
    fleet_beats = all_writes * own_beats / (own_beats + own_writes)
    wanted = max(current * fleet_beats / FLEET_BEATS_PER_SEC, current / 2)
    return max(base, min(wanted, LONGEST_SEC))
