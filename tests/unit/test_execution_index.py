"""REQ-0006: the index of executions, which a gateway keeps in a file."""

import asyncio
import random
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyoco_server.domain.executions.events import ORCHESTRATOR, Commit
from pyoco_server.domain.executions.model import ExecutionStatus
from pyoco_server.domain.executions.records import ExecutionSummary, LoggedCommit, Wait
from pyoco_server.domain.runs.listing import Place
from pyoco_server.errors import IndexLost
from pyoco_server.read_model.executions import MAX_UNCOMMITTED, SqliteExecutionIndex
from pyoco_server.usecases.ports.gateway import ExecutionFilter
from pyoco_server.usecases.ports.stores import Change, FeedBatch, FeedPosition, Revision
from pyoco_server.usecases.services.follow import FollowExecutions
from support.builders import NOW
from support.captured_logs import capture_logs
from support.programs import proc
from support.tables import every_row
from support.waiting import until

ENDED = (ExecutionStatus.COMPLETED, ExecutionStatus.FAILED, ExecutionStatus.CANCELED)
FILTERS = [
    ExecutionFilter(status=status, graph_id=graph_id, archived=archived)
    for status in (None, *ExecutionStatus)
    for graph_id in (None, "g1", "other")
    for archived in (False, True)
]


def change(revision: int, of: str, version: int, **fields: Any) -> Change[LoggedCommit]:
    expires_at = fields.pop("expires_at", None)
    given: dict[str, Any] = {"status": ExecutionStatus.ACTIVE, "graph_id": "g1", "created_at": NOW}
    given.update(fields)
    summary = ExecutionSummary(
        execution_id=of, graph_version=1, version=version, updated_at=NOW + revision, **given
    )
    commit = Commit(
        execution_id=of,
        command_id=f"{of}-{version}",
        first_sequence=version,
        at=NOW,
        actor=ORCHESTRATOR,
        payloads=(),
    )
    return Change(of, Revision(revision), LoggedCommit(commit, summary), expires_at, NOW + revision)


def at(revision: int) -> FeedPosition:
    return FeedPosition("created", Revision(revision))


def a_wait(of: str, waiting_at: float = NOW) -> Wait:
    return Wait(execution_id=of, graph_id="g1", node_id="ask", waiting_at=waiting_at, wait_key="k")


def history(seed: int, length: int) -> list[Change[LoggedCommit]]:
    """Lives of executions, mixed: waits, ends, archives, deletes, and an id that is used again."""
    chance = random.Random(seed)  # noqa: S311 - a choice, no secret
    versions: dict[str, int] = {}
    dead: set[str] = set()
    changes = []
    for revision in range(1, length + 1):
        of = f"e{chance.randrange(length // 5 or 1)}"
        version = versions[of] = 1 if of in dead else versions.get(of, 0) + 1
        dead.discard(of)
        fields: dict[str, Any] = {"graph_id": f"g{int(of[1:]) % 3}", "created_at": NOW + int(of[1:])}
        if version > 2:
            fields |= {"status": chance.choice(ENDED), "ended_at": NOW + revision}
        elif chance.random() < 0.5:
            fields["waits"] = (a_wait(of),)
        if version > 3:
            fields["archived_at"] = NOW
        if version > 4 and chance.random() < 0.5:
            fields |= {"deleted_at": NOW, "expires_at": NOW + revision + 1}
            dead.add(of)
        changes.append(change(revision, of, version, **fields))
    return changes


def pages(index: SqliteExecutionIndex, wanted: ExecutionFilter) -> list[bytes]:
    found: list[bytes] = []
    after: Place | None = None
    while True:
        page = index.page(wanted, after, 7)
        found += page.summaries
        if page.more_after is None:
            return found
        after = page.more_after


def contents(index: SqliteExecutionIndex) -> dict[str, Any]:
    """All that it answers."""
    ids = [f"e{n}" for n in range(400)]
    return {
        "pages": [pages(index, wanted) for wanted in FILTERS],
        "matching": [index.matching(wanted) for wanted in FILTERS],
        "counts": index.counts(None),
        "active": sorted(index.active()),
        "waits": index.waits(None, None, 1000).summaries,
        "versions": [(index.version(one), index.has_ended(one)) for one in ids],
        "ended": index.ended_before(NOW + 1e6, 1000),
    }


def opened(path: Path) -> SqliteExecutionIndex:
    return SqliteExecutionIndex(path, tenants=False)


def left_by_a_kill(path: Path, directory: Path) -> SqliteExecutionIndex:
    """What a process leaves that is killed now, opened by the next."""
    shutil.copytree(path.parent, directory)
    return opened(directory / path.name)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_continues_with_what_was_written(tmp_path: Path, *, is_killed: bool) -> None:
    """And comes to the same lists as a gateway that has read everything."""
    proc()
    changes = history(1, 2_000)
    path = tmp_path / "one" / "executions.sqlite"
    index, whole = opened(path), SqliteExecutionIndex(None, tenants=False)
    for one in changes[:1_700]:
        index.apply([one], at(one.revision))
    if is_killed:
        again = left_by_a_kill(path, tmp_path / "two")
        index.close()
    else:
        index.close()
        again = opened(path)
    read = again.position
    assert read is not None
    assert 1_700 - MAX_UNCOMMITTED <= read.last_revision <= 1_700
    again.apply(changes[read.last_revision :], at(2_000))
    for one in changes:
        whole.apply([one], at(one.revision))
    assert contents(again) == contents(whole)
    assert sum(again.counts(None).values()) == sum(len(pages(again, f)) for f in FILTERS[:1] + FILTERS[1:2])
    again.close()
    whole.close()


def test_another_version_or_stream_is_read_from_the_beginning(tmp_path: Path) -> None:
    path = tmp_path / "executions.sqlite"
    index = opened(path)
    index.apply([change(1, "e1", 1)], at(1))
    index.close()
    tenants = SqliteExecutionIndex(path, tenants=True)
    assert tenants.position is None
    tenants.close()


def test_the_id_of_a_deleted_execution_is_free_when_its_last_commit_has_expired() -> None:
    index = SqliteExecutionIndex(None, tenants=False)
    gone = change(5, "e1", 3, deleted_at=NOW, expires_at=NOW + 60)
    index.apply([change(1, "e1", 1), gone, change(4, "e1", 2)], at(5))
    index.apply([gone], at(5))
    index.apply([change(4, "e1", 2)], at(5))
    assert (index.version("e1"), index.is_deleted("e1")) == (0, True), "a late commit is history"
    index.apply([change(80, "e2", 9, deleted_at=NOW, expires_at=NOW + 200)], at(80))
    assert (index.is_deleted("e1"), index.is_deleted("e2")) == (False, True)
    index.apply([change(90, "e2", 1)], at(90))
    assert (index.version("e2"), index.is_deleted("e2")) == (1, False)
    index.close()


# Its cost


def steps_of(index: SqliteExecutionIndex, wanted: ExecutionFilter, after: Place | None) -> int:
    """Steps of SQLite's machine: no clock, so a busy machine is no matter."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    index._db.set_progress_handler(step, 1)
    index.page(wanted, after, 20)
    index.waits(None, after, 20)
    index.counts(None)
    index.matching(wanted)
    index._db.set_progress_handler(None, 1)
    return steps


def filled(executions: int) -> SqliteExecutionIndex:
    """The wanted ones are the oldest; of the others each fits one filter only."""
    index, changes = SqliteExecutionIndex(None, tenants=False), []
    for n in range(executions):
        of = f"e{n:06}"
        kind: dict[str, Any] = {"graph_id": "g1"} if n < 50 or n % 2 else {"graph_id": "g2"}
        if n < 50 or not n % 2:
            kind["status"] = ExecutionStatus.FAILED
        changes.append(change(n + 1, of, 1, created_at=NOW + n, waits=(a_wait(of, NOW + n),), **kind))
    index.apply(changes, at(executions))
    return index


def test_a_page_takes_the_same_steps_however_many_executions_there_are() -> None:
    few, many = filled(200), filled(6_000)

    @every_row("wanted", FILTERS)
    def check(wanted: ExecutionFilter) -> None:
        for after in (None, Place(NOW + 30, "e000030")):
            assert steps_of(many, wanted, after) <= 1.5 * steps_of(few, wanted, after) + 50

    check()
    few.close()
    many.close()


# When its file fails


class History:
    """A feed that can be read again and again."""

    stale_sec = missed_sec = 0.0

    def __init__(self, commits: int) -> None:
        self.changes = history(2, commits)
        self.news = asyncio.Event()
        self.starts: list[FeedPosition | None] = []

    async def follow(self, position: FeedPosition | None) -> AsyncGenerator[FeedBatch[LoggedCommit], None]:
        self.starts.append(position)
        begin = 0 if position is None else position.last_revision
        yield FeedBatch([], at(begin), position is None, False, len(self.changes) - begin)
        yield FeedBatch(self.changes[begin:], at(len(self.changes)), False, True)
        await self.news.wait()
        self.news.clear()
        self.changes.append(change(len(self.changes) + 1, "news", 1))
        yield FeedBatch(self.changes[-1:], at(len(self.changes)), False, True)
        await asyncio.Event().wait()


class NoRecords:
    def heard(self, *_: Any, **__: Any) -> bool:
        return False

    def forget_all(self) -> None: ...


def following(feed: History, index: SqliteExecutionIndex) -> FollowExecutions:
    hub = SimpleNamespace(ring=lambda _: None)
    nobody: Any = SimpleNamespace(attends_to=lambda _: False)
    return FollowExecutions(feed, index, NoRecords(), nobody, hub, lost_check_sec=0.01)  # type: ignore[arg-type]


def damage(index: SqliteExecutionIndex) -> None:
    index._write_waiting()
    index._db.execute("PRAGMA writable_schema = ON")
    index._db.execute("UPDATE sqlite_schema SET rootpage = 3 WHERE name = 'executions'")
    index._db.commit()
    index._db.execute("PRAGMA writable_schema = RESET")


@pytest.mark.parametrize("has_news", [False, True])
async def test_an_index_that_fails_is_filled_again(tmp_path: Path, *, has_news: bool) -> None:
    """Also if there is news before anybody has noticed."""
    feed, index = History(300), opened(tmp_path / "executions.sqlite")
    follow = following(feed, index)
    task = asyncio.ensure_future(follow.run())

    async def is_filled() -> bool:
        return follow.is_caught_up

    await until(is_filled)
    before = contents(index)
    damage(index)
    with capture_logs() as logs, pytest.raises(IndexLost):
        contents(index)
    assert not follow.is_caught_up
    assert index.has_ended("e1") is False
    if has_news:
        feed.news.set()
        index.apply([change(999, "local", 1)])
    await until(is_filled)
    assert feed.starts == [None, None]
    assert contents(index)["ended"] == before["ended"]
    assert [line["index"] for line in logs if line.get("action") == "index.lost"] == ["executions"]
    task.cancel()
    await asyncio.wait({task})
    index.close()


async def test_a_warm_start_reads_what_is_new_and_a_cold_one_shows_how_far_it_is(tmp_path: Path) -> None:
    feed, path = History(300), tmp_path / "executions.sqlite"
    for expected in ([(0, 300), None], [(0, 0), None]):
        index = opened(path)
        follow, seen = following(feed, index), []
        batches = feed.follow(index.position)
        for _ in range(2):
            await follow._take(await anext(batches))
            seen.append(follow.progress)
        assert seen == expected
        index.close()
    assert feed.starts == [None, at(300)]
