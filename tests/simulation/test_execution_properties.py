"""F1: any sequence of commands, looks, ends of runs, crashes and jumps of the clock.

A sequence that fails names its seed; `support.random_executions.storm(seed)` repeats it.
"""

from collections import Counter
from random import Random

import pytest

from pyoco_server.domain.executions.branches import between
from pyoco_server.domain.executions.events import PAYLOADS
from support.random_executions import GraphMaker, storm


@pytest.mark.parametrize(
    "sequences",
    [1_000, pytest.param(10_000, marks=pytest.mark.slow), pytest.param(200_000, marks=pytest.mark.long)],
)
def test_no_sequence_breaks_what_must_hold(sequences: int) -> None:
    """After a cancel only CANCELED; what has ended stays; no gaps; one run per attempt; everything ends."""
    seen = Counter[str]()
    for seed in range(sequences):
        life = storm(seed)
        seen[life.status] += 1
        seen.update(set(life.types))
    assert set(seen) == {"COMPLETED", "FAILED", "CANCELED", *PAYLOADS}
    assert min(seen.values()) > sequences / 500, seen


def test_the_branches_between_forks_and_joins_are_those_below_the_one_and_above_the_other() -> None:
    for seed in range(200):
        graph = GraphMaker(Random(seed)).make()  # noqa: S311 - it is to be repeatable
        for joins in ([join_id] for join_id in graph.forks), [list(graph.forks)]:
            for chosen in joins:
                wanted = [graph.descendants(graph.forks[end]) & graph.ancestors(end) for end in chosen]
                assert between(graph, chosen) == frozenset().union(*wanted), seed
