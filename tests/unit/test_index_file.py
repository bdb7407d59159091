"""REQ-0006: the file of the run index: who may use it, when it is believed, and what happens if it fails."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from pyoco_server.domain.runs.listing import RunFilter
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.errors import IndexLost
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.ports.stores import Change, FeedBatch, FeedPosition, Revision
from pyoco_server.usecases.runs.watch import WatchHub
from pyoco_server.usecases.services.follow import FollowRuns
from support.builders import NOW, a_snapshot
from support.captured_logs import capture_logs
from support.programs import proc
from support.waiting import until


def run_id(n: int) -> str:
    return f"0190aaaa-bbbb-7ccc-8ddd-{n:012}"


def change(n: int) -> Change[RunSnapshot]:
    return Change(run_id(n), Revision(n), a_snapshot(run_id=run_id(n), updated_at=NOW + n), None)


def put(index: SqliteRunIndex, *numbers: int) -> None:
    index.apply([change(n) for n in numbers], FeedPosition("created", Revision(numbers[-1])))


def listed(index: SqliteRunIndex) -> list[str]:
    return [place.run_id for place in index.page(RunFilter(), None, 200).places]


def opened(path: Path) -> SqliteRunIndex:
    return SqliteRunIndex(path, tenants=False)


def left_by_a_kill(index: SqliteRunIndex, path: Path, directory: Path) -> Path:
    """What a process leaves that is killed now."""
    listed(index)
    shutil.copytree(path.parent, directory)
    index.close()
    return directory / path.name


def note_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def test_two_gateways_with_one_path_have_files_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    first, second = opened(path), opened(path)
    put(first, 1)
    put(second, 1, 2)
    assert (len(listed(first)), len(listed(second))) == (1, 2)
    first.close()
    second.close()
    assert {file.name for file in tmp_path.glob("*.sqlite")} == {"runs.sqlite", "runs-2.sqlite"}
    again = opened(path), opened(path)
    assert [len(listed(index)) for index in again] == [1, 2], "each continues with what it had"
    for index in again:
        index.close()


def test_more_gateways_than_files_and_a_path_of_no_use_cost_a_rebuild_at_the_next_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    crowd = [opened(tmp_path / "runs.sqlite") for _ in range(8)]
    with capture_logs() as logs:
        indexes = [opened(tmp_path / "runs.sqlite"), opened(tmp_path / "file" / "runs.sqlite")]
    told = [line["reason"] for line in logs if line.get("action") == "index.in_memory"]
    assert len(told) == 2
    assert "in use by other gateways" in told[0]
    for index in indexes:
        put(index, 1)
        assert listed(index) == [run_id(1)]
    for index in crowd + indexes:
        index.close()


def test_after_a_kill_the_file_is_used(tmp_path: Path) -> None:
    """Only where it is known whether the system has started again."""
    proc()
    path = tmp_path / "one" / "runs.sqlite"
    index = opened(path)
    put(index, 1, 2, 3)
    left = left_by_a_kill(index, path, tmp_path / "two")
    index = opened(left)
    assert (index.position, len(listed(index))) == (FeedPosition("created", Revision(3)), 3)
    assert index.counts(None)[RunStatus.PENDING] == 3
    index.close()


@pytest.mark.parametrize("note", [b"", b"{", b"another boot"])
def test_after_a_power_failure_the_file_is_not_used(tmp_path: Path, note: bytes) -> None:
    """The note beside the file is of another boot, or was not written whole."""
    path = tmp_path / "one" / "runs.sqlite"
    index = opened(path)
    put(index, 1, 2, 3)
    left = left_by_a_kill(index, path, tmp_path / "two")
    if note == b"another boot":
        boot = proc("sys/kernel/random/boot_id").read_bytes().strip()
        note = note_of(left).read_bytes().replace(boot, b"0" * len(boot))
    note_of(left).write_bytes(note)
    index = opened(left)
    assert (index.position, listed(index)) == (None, [])
    index.close()


def test_after_a_clean_stop_and_a_reboot_the_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    index = opened(path)
    put(index, 1)
    index.close()
    assert b'"boot":""' in note_of(path).read_bytes()
    index = opened(path)
    assert listed(index) == [run_id(1)]
    index.close()


def test_an_old_file_is_removed_by_the_gateway_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.sqlite"
    first, second = opened(path), opened(path)
    first.close()
    second.close()
    old = tmp_path / "runs-2.sqlite"
    os.utime(old, (NOW, NOW - 1e6))
    first = opened(path)
    assert not old.exists()
    first.close()


def fill_the_disk(index: SqliteRunIndex) -> None:
    (pages,) = index._db.execute("PRAGMA page_count").fetchone()
    index._db.execute(f"PRAGMA max_page_count = {pages}")


def damage(index: SqliteRunIndex) -> None:
    index._db.execute("PRAGMA writable_schema = ON")
    index._db.execute("UPDATE sqlite_schema SET rootpage = 3 WHERE name = 'runs'")
    index._db.commit()
    index._db.execute("PRAGMA writable_schema = RESET")


NEWS = 600
"""More than an index keeps unwritten."""


class History:
    """A feed of runs that can be read again and again."""

    stale_sec = missed_sec = 0.0

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.news = asyncio.Event()

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[RunSnapshot], None]:
        start = FeedPosition("created", Revision(0 if position is None else position.last_revision))
        yield FeedBatch([], start, position is None, False, self.runs, Revision(self.runs))
        changes = [change(n) for n in range(start.last_revision + 1, self.runs + 1)]
        yield FeedBatch(changes[:2], start.at(changes[1].revision), False, False, len(changes) - 2)
        yield FeedBatch(changes[2:], start.at(Revision(self.runs)), False, True)
        await self.news.wait()
        self.news.clear()
        news = [change(n) for n in range(self.runs + 1, self.runs + NEWS + 1)]
        self.runs += NEWS
        yield FeedBatch(news, start.at(Revision(self.runs)), False, True)
        await asyncio.Event().wait()


class NoMeter:
    def started(self, queue_wait_sec: float, *, is_delayed: bool) -> None: ...
    def redelivered(self) -> None: ...
    def ended(self, status: RunStatus, duration_sec: float | None) -> None: ...


def following(feed: History, index: SqliteRunIndex) -> FollowRuns:
    return FollowRuns(feed, index, WatchHub(10), lambda: NOW, NoMeter(), expire_interval_sec=0.01)


@pytest.mark.parametrize("harm", [fill_the_disk, damage])
@pytest.mark.parametrize("by_a_list", [False, True])
async def test_an_index_that_fails_is_filled_again(
    tmp_path: Path, harm: Callable[[SqliteRunIndex], None], *, by_a_list: bool
) -> None:
    """While it is, lists are not complete, and nobody gets a part of them."""
    feed, index = History(400), opened(tmp_path / "runs.sqlite")
    follow = following(feed, index)
    tasks = [asyncio.ensure_future(follow.run()), asyncio.ensure_future(follow.keep_expiring())]
    await follow.caught_up()
    listed(index)
    harm(index)
    with capture_logs() as logs:
        if by_a_list:  # and the feed is silent
            with pytest.raises(IndexLost):
                put(index, *range(1000, 2000))
            assert not follow.is_caught_up
        else:
            feed.news.set()

        async def counted() -> int:
            return sum(index.counts(None).values()) if follow.is_caught_up else 0

        await until(counted, lambda found: found == (400 if by_a_list else 400 + NEWS))
    assert [line["place"] for line in logs if line.get("action") == "index.lost"] == [
        "memory" if harm is fill_the_disk else "file"
    ]
    assert len(listed(index)) == 200
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    index.close()


async def test_progress_is_known_and_logged(tmp_path: Path) -> None:
    feed, index = History(5), opened(tmp_path / "runs.sqlite")
    follow = following(feed, index)
    seen = []
    batches = feed.follow(None)
    with capture_logs() as logs:
        for _ in range(3):
            await follow._take(await anext(batches))
            seen.append(follow.progress)
    assert seen == [(0, 5), (2, 5), None]
    (ready,) = [line for line in logs if line.get("action") == "index.ready"]
    assert ready["read"] == 5
    index.close()
