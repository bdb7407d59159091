"""F1: any sequence of commands, looks, ends of runs, crashes and jumps of the clock.

`PYOCO_TEST_CAMPAIGN=1000000 pytest tests/simulation/test_execution_properties.py` runs as many sequences by
hand. A sequence that fails names its seed; `support.random_executions.storm(seed)` repeats it.
"""

import os
from collections import Counter
from random import Random

from pyoco_server.domain.executions.branches import between
from pyoco_server.domain.executions.events import PAYLOADS
from support.random_executions import GraphMaker, storm

CAMPAIGN = os.environ.get("PYOCO_TEST_CAMPAIGN")
SEQUENCES = int(CAMPAIGN) if CAMPAIGN else 20_000


def test_no_sequence_breaks_what_must_hold() -> None:
    """After a cancel only CANCELED; what has ended stays; no gaps; one run per attempt; everything ends."""
    seen = Counter[str]()
    for seed in range(SEQUENCES):
        life = storm(seed)
        seen[life.status] += 1
        seen.update(set(life.types))
    assert set(seen) == {"COMPLETED", "FAILED", "CANCELED", *PAYLOADS}
    assert min(seen.values()) > SEQUENCES / 500, seen


def test_the_branches_between_forks_and_joins_are_those_below_the_one_and_above_the_other() -> None:
    for seed in range(200):
        graph = GraphMaker(Random(seed)).make()  # noqa: S311 - it is to be repeatable
        for joins in ([join_id] for join_id in graph.forks), [list(graph.forks)]:
            for chosen in joins:
                wanted = [graph.descendants(graph.forks[end]) & graph.ancestors(end) for end in chosen]
                assert between(graph, chosen) == frozenset().union(*wanted), seed
