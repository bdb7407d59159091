"""What many watchers cost."""

import gc
import tracemalloc
from contextlib import ExitStack

from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.usecases.ports.stores import Change, Revision
from pyoco_server.usecases.runs.watch import WatchHub
from support.builders import OWNER, a_snapshot

ACTIVE = 3_000
WATCHERS = 20


async def test_a_watcher_of_the_list_keeps_nothing_of_the_runs_that_are_active() -> None:
    """D15: each kept 240 bytes of every active run, for as long as it watched."""
    hub = WatchHub(WATCHERS)
    with ExitStack() as stack:
        watchers = [stack.enter_context(hub.watching_list(lambda _: True)) for _ in range(WATCHERS)]
        tracemalloc.start()
        for n in range(ACTIVE):
            run = a_snapshot(RunStatus.RUNNING, OWNER, run_id=f"run-{n}")
            hub.tell([Change(run.run_id, Revision(n + 1), run, None)], lambda _: False)
        for watcher in watchers:
            assert await watcher.next(0) is not None
        gc.collect()  # empties the free lists of the interpreter
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert kept < WATCHERS * ACTIVE, f"{kept / WATCHERS / ACTIVE:.0f} bytes for each run and watcher"
