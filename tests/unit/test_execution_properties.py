"""F1: any sequence of commands, looks, ends of runs, crashes and jumps of the clock.

`PYOCO_TEST_CAMPAIGN=1000000 pytest tests/unit/test_execution_properties.py` runs as many sequences by hand. A
sequence that fails names its seed; `support.storms.storm(seed)` repeats it.
"""

import os
from collections import Counter

from pyoco_server.domain.execution.events import PAYLOADS
from support.storms import storm

CAMPAIGN = os.environ.get("PYOCO_TEST_CAMPAIGN")
SEQUENCES = int(CAMPAIGN) if CAMPAIGN else 3_000


def test_no_sequence_breaks_what_must_hold() -> None:
    """After a cancel only CANCELED; what has ended stays; no gaps; one run per attempt; everything ends."""
    seen = Counter[str]()
    for seed in range(SEQUENCES):
        life = storm(seed)
        seen[life.status] += 1
        seen.update(set(life.types))
    assert set(seen) == {"COMPLETED", "FAILED", "CANCELED", *PAYLOADS}
    assert min(seen.values()) > SEQUENCES / 500, seen
