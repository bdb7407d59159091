"""REQ-0006: a gateway that is killed while it writes its index continues with it, and nothing is missing."""

import itertools
import os
import random
import subprocess
import sys
from pathlib import Path

from pyoco_server.domain.runs.listing import Place, RunFilter
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision
from support.builders import NOW, a_snapshot

RUNS = 300
STATUSES = [RunStatus.PENDING, RunStatus.RUNNING, RunStatus.COMPLETED, RunStatus.FAILED]


def change(revision: int) -> Change[RunSnapshot]:
    """The same in every process."""
    chosen = random.Random(revision)  # noqa: S311 - a choice, no secret
    run_id = f"0190aaaa-bbbb-7ccc-8ddd-{chosen.randrange(RUNS):012}"
    if chosen.random() < 0.1:
        return Change(run_id, Revision(revision), None, None)
    run = a_snapshot(
        chosen.choice(STATUSES),
        run_id=run_id,
        flow_name=chosen.choice("fg"),
        tag=chosen.choice("ab"),
        updated_at=NOW + revision,
    )
    return Change(run_id, Revision(revision), run, None)


def apply(index: SqliteRunIndex, first: int, last: int) -> None:
    for revision in range(first, last + 1):
        index.apply([change(revision)], FeedPosition("created", Revision(revision)))


def pages(index: SqliteRunIndex, wanted: RunFilter) -> list[bytes]:
    found: list[bytes] = []
    after: Place | None = None
    while True:
        page = index.page(wanted, after, 100)
        found += page.summaries
        if page.more_after is None:
            return found
        after = page.more_after


def write_until_killed(path: Path) -> None:
    index = SqliteRunIndex(path, tenants=False, max_waiting=7)
    first = 1 if index.position is None else index.position.last_revision + 1
    for start in itertools.count(first, 10):
        sys.stdout.write(f"{start}\n")
        sys.stdout.flush()
        apply(index, start, start + 9)


def busy(index: SqliteRunIndex) -> dict[str, tuple[int, int]]:
    """Without those that ended in the last minute, whom only the process knows that saw their ends."""
    return {tag: (found.waiting, found.running) for tag, found in index.queues(None, NOW).items()}


def killed_after(lines: int, path: Path) -> int:
    """The revision with which a process began that was killed while it wrote."""
    with subprocess.Popen(
        [sys.executable, __file__, path],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as writer:
        assert writer.stdout is not None
        begun = [int(writer.stdout.readline()) for _ in range(lines)]
        writer.kill()
    return begun[0]


def test_a_kill_in_the_middle_of_a_write_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    for lines in (5, 40, 90):  # each continues where the one before was killed
        first = killed_after(lines, path)
    index = SqliteRunIndex(path, tenants=False)
    position = index.position
    assert position is not None
    assert position.last_revision > first > 1, "the file of a killed process is used"
    last = position.last_revision + 50
    apply(index, position.last_revision + 1, last)
    fresh = SqliteRunIndex(None, tenants=False)
    apply(fresh, 1, last)
    for wanted in (RunFilter(), RunFilter(flow="f"), RunFilter(tag="a", status=RunStatus.FAILED)):
        assert pages(index, wanted) == pages(fresh, wanted)
    assert index.counts(None) == fresh.counts(None)
    assert busy(index) == busy(fresh)
    assert set(index.unfinished()) == set(fresh.unfinished())
    index.close()
    fresh.close()


if __name__ == "__main__":
    write_until_killed(Path(sys.argv[1]))
