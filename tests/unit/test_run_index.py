"""REQ-0006: the index of runs answers like a plain list that is sorted and filtered anew each time."""

import itertools
import shutil
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.codec import encode
from pyoco_server.domain.runs.listing import Place, RunFilter, RunSummary, summary
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.read_model.runs import SqliteRunIndex
from pyoco_server.usecases.ports.stores import Change, FeedPosition, Revision
from support.builders import NOW, OWNER, a_snapshot

RUN_IDS = [f"0190aaaa-bbbb-7ccc-8ddd-eeeeffff000{n}" for n in range(8)]
TENANTS = [None, "acme", "other"]
FLOWS = ["f", "g"]
TAGS = ["a", "b", ""]
SHAS = [None, "s1", "s2"]
TIMES = [NOW, NOW + 0.1, NOW + 0.2]


class Put(Struct, frozen=True):
    run: RunSnapshot
    expires_at: float | None


class Remove(Struct, frozen=True):
    run_id: str


class Expire(Struct, frozen=True):
    now: float


class Clear(Struct, frozen=True):
    pass


class Reopen(Struct, frozen=True):
    pass


class Kill(Struct, frozen=True):
    """Of the process, which leaves its files as they are; the next one reads what is missing."""


class Look(Struct, frozen=True):
    """Asking makes the index write what waits."""


Step = Put | Remove | Expire | Clear | Reopen | Kill | Look

runs = st.builds(
    a_snapshot,
    st.sampled_from(list(RunStatus)),
    run_id=st.sampled_from(RUN_IDS),
    tenant_id=st.sampled_from(TENANTS),
    flow_name=st.sampled_from(FLOWS),
    tag=st.sampled_from([None, *TAGS]),
    tags=st.none() | st.lists(st.sampled_from(TAGS), max_size=3).map(tuple),
    workflow_yaml_sha256=st.sampled_from(SHAS),
    updated_at=st.sampled_from(TIMES),
)
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(Put, runs, st.none() | st.sampled_from([NOW + 1, NOW + 2])),
    st.builds(Put, runs, st.none()),
    st.builds(Remove, st.sampled_from(RUN_IDS)),
    st.builds(Expire, st.sampled_from([NOW, NOW + 1, NOW + 5])),
    st.just(Clear()),
    st.just(Reopen()),
    st.just(Kill()),
    st.just(Look()),
)
filters = st.builds(
    RunFilter,
    tenant_id=st.sampled_from(TENANTS),
    status=st.none() | st.sampled_from(list(RunStatus)),
    flow=st.none() | st.sampled_from(FLOWS),
    tag=st.none() | st.sampled_from(["a", "b"]),
    updated_after=st.none() | st.sampled_from(TIMES),
    updated_before=st.none() | st.sampled_from(TIMES),
    workflow_yaml_sha256=st.sampled_from(SHAS),
)


class Naive:
    """What the index should say."""

    def __init__(self, *, tenants: bool) -> None:
        self.tenants = tenants
        self.runs: dict[str, tuple[RunSnapshot, float | None, int]] = {}

    def take(self, step: Step, revision: int) -> None:
        match step:
            case Put():
                self.runs[step.run.run_id] = (step.run, step.expires_at, revision)
            case Remove():
                self.runs.pop(step.run_id, None)
            case Expire():
                self.runs = {k: v for k, v in self.runs.items() if v[1] is None or v[1] > step.now}
            case Clear():
                self.runs = {}
            case _:
                pass

    def is_in_scope(self, run: RunSnapshot, tenant_id: str | None) -> bool:
        return not self.tenants or (run.tenant_id or "") == (tenant_id or "")

    def is_wanted(self, run: RunSnapshot, wanted: RunFilter) -> bool:
        return (
            self.is_in_scope(run, wanted.tenant_id)
            and wanted.status in (None, run.status)
            and wanted.flow in (None, run.flow_name)
            and (wanted.tag is None or wanted.tag in (run.tag, *(run.tags or ())))
            and (wanted.updated_after is None or run.updated_at > wanted.updated_after)
            and (wanted.updated_before is None or run.updated_at < wanted.updated_before)
            and wanted.workflow_yaml_sha256 in (None, run.workflow_yaml_sha256)
        )

    def listed(self, wanted: RunFilter) -> list[RunSummary]:
        found = [run for run, _, _ in self.runs.values() if self.is_wanted(run, wanted)]
        return [
            summary(run, run.run_id, run.updated_at)
            for run in sorted(found, key=lambda r: (r.updated_at, r.run_id), reverse=True)
        ]

    def counts(self, tenant_id: str | None) -> dict[RunStatus, int]:
        mine = [run.status for run, _, _ in self.runs.values() if self.is_in_scope(run, tenant_id)]
        return {status: mine.count(status) for status in RunStatus}

    def flows(self, tenant_id: str | None) -> list[str]:
        return sorted({run.flow_name for run, _, _ in self.runs.values() if self.is_in_scope(run, tenant_id)})

    def unfinished(self) -> set[tuple[str, Revision, RunStatus]]:
        return {
            (key, Revision(revision), run.status)
            for key, (run, _, revision) in self.runs.items()
            if not run.status.is_terminal
        }


def take(index: SqliteRunIndex, step: Step, revision: int, path: Path) -> SqliteRunIndex:
    position = FeedPosition("created", Revision(revision))
    match step:
        case Put():
            index.apply([Change(step.run.run_id, Revision(revision), step.run, step.expires_at)], position)
        case Remove():
            index.apply([Change(step.run_id, Revision(revision), None, None)], position)
        case Expire():
            index.expire(step.now)
        case Clear():
            index.clear()
        case Look():
            index.counts(None)
        case Reopen():
            before = index.position
            index.close()
            index = SqliteRunIndex(path, tenants=index._tenants, max_waiting=index._max_waiting)
            assert index.position == before
    return index


def all_pages(index: SqliteRunIndex, wanted: RunFilter, limit: int) -> list[bytes]:
    found: list[bytes] = []
    after: Place | None = None
    while True:
        page = index.page(wanted, after, limit)
        assert len(page.summaries) <= limit
        found += page.summaries
        if page.more_after is None:
            return found
        assert len(page.summaries) == limit
        after = page.more_after


def after_a_kill(index: SqliteRunIndex, path: Path, history: list[Step]) -> tuple[SqliteRunIndex, Path]:
    """Another process continues at the position that the files have."""
    left = Path(tempfile.mkdtemp(dir=path.parent)) / path.name
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy(file, left.parent)
    index._waiting.clear()
    index.close()
    index = SqliteRunIndex(left, tenants=index._tenants, max_waiting=index._max_waiting)
    cleared = max((n for n, step in enumerate(history, 1) if isinstance(step, Clear)), default=0)
    known = cleared if index.position is None else max(cleared, index.position.last_revision)
    for revision, step in enumerate(history, 1):
        if revision > known and isinstance(step, Put | Remove):
            index = take(index, step, revision, left)
    return index, left


@settings(max_examples=150)
@given(
    history=st.lists(steps, max_size=25),
    asked=st.lists(filters, min_size=1, max_size=6),
    limit=st.integers(1, 4),
    tenants=st.booleans(),
    patience=st.sampled_from([1, 3, 500]),
)
def test_the_index_says_what_a_plain_list_would_say(
    history: list[Step], asked: list[RunFilter], limit: int, *, tenants: bool, patience: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "index.db"
        index = SqliteRunIndex(path, tenants=tenants, max_waiting=patience)
        naive = Naive(tenants=tenants)
        for revision, step in enumerate(history, 1):
            if isinstance(step, Kill):
                index, path = after_a_kill(index, path, history[:revision])
            else:
                index = take(index, step, revision, path)
            naive.take(step, revision)
        for wanted in (RunFilter(), *asked):
            assert all_pages(index, wanted, limit) == [encode(found) for found in naive.listed(wanted)]
            counted = replace(wanted, status=None, workflow_yaml_sha256=None)
            listed = Counter(found.status for found in naive.listed(counted))
            assert index.counts_within(wanted, 2) == {status: min(2, listed[status]) for status in RunStatus}
        for tenant_id in TENANTS:
            assert index.counts(tenant_id) == naive.counts(tenant_id)
            assert index.flows(tenant_id, "", 10) == naive.flows(tenant_id)
        assert set(index.unfinished()) == naive.unfinished()
        index.close()


@settings(max_examples=50)
@given(
    first=st.lists(st.builds(Put, runs, st.none()), max_size=8, unique_by=lambda put: put.run.run_id),
    later=st.lists(st.builds(Put, runs, st.none()), max_size=8),
    asked=filters,
)
def test_a_new_gateway_has_what_one_has_that_saw_every_change(
    first: list[Put], later: list[Put], asked: RunFilter
) -> None:
    """It does not look for earlier changes of runs in a history that has one of each."""
    old, new = SqliteRunIndex(None, tenants=False), SqliteRunIndex(None, tenants=False)
    new.clear(Revision(len(first)))
    for revision, step in enumerate([*first, *later], 1):
        for index in (old, new):
            take(index, step, revision, Path())
    for wanted in (RunFilter(), asked):
        assert all_pages(new, wanted, 3) == all_pages(old, wanted, 3)
    assert new.counts(None) == old.counts(None)
    assert new.flows(None, "", 10) == old.flows(None, "", 10)
    old.close()
    new.close()


def put(index: SqliteRunIndex, key: str, revision: int, **fields: Any) -> None:
    run = a_snapshot(**{"run_id": key, **fields})
    index.apply([Change(key, Revision(revision), run, None)], FeedPosition("created", Revision(revision)))


def ids(index: SqliteRunIndex) -> list[str]:
    return [place.run_id for place in index.page(RunFilter(), None, 50).places]


def test_a_record_under_a_key_that_is_not_its_run_id_spoils_nothing() -> None:
    """Whoever wrote it: the key is what a run is found by."""
    index = SqliteRunIndex(None, tenants=False)
    put(index, RUN_IDS[0], 1)
    put(index, RUN_IDS[1], 2, run_id=RUN_IDS[0])
    put(index, RUN_IDS[2], 3, run_id=RUN_IDS[0])
    assert sorted(ids(index)) == RUN_IDS[:3]
    assert sum(index.counts(None).values()) == 3
    index.close()


def test_a_run_that_the_store_does_not_have_is_forgotten() -> None:
    index = SqliteRunIndex(None, tenants=False)
    put(index, RUN_IDS[0], 1)
    put(index, RUN_IDS[1], 2)
    index.forget(RUN_IDS[0])
    index.forget("unknown")
    assert ids(index) == [RUN_IDS[1]]
    assert index.counts(None)[RunStatus.PENDING] == 1
    index.close()


def new_file(path: Path) -> None:
    index = SqliteRunIndex(path, tenants=False)
    for n in range(300):
        put(index, f"0190aaaa-bbbb-7ccc-8ddd-{n:012}", n + 1)
    index.close()


def spoil_the_middle(path: Path) -> None:
    """The head is fine; what it leads to is not."""
    content = bytearray(path.read_bytes())
    content[8192:-4096] = b"\xaa" * (len(content) - 4096 - 8192)
    path.write_bytes(content)


def change_the_kind(path: Path) -> None:
    note = path.with_name(f"{path.name}.lock")
    note.write_bytes(note.read_bytes().replace(b"shared", b"others"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"no database at all"),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(b""),
        spoil_the_middle,
        change_the_kind,
    ],
)
def test_a_file_that_is_of_no_use_is_made_anew_and_nothing_beside_it_is_touched(
    tmp_path: Path, spoil: Any
) -> None:
    path = tmp_path / "index.db"
    neighbour = tmp_path / "index.db.backup"
    neighbour.write_text("precious")
    new_file(path)
    spoil(path)
    index = SqliteRunIndex(path, tenants=False)
    assert (index.position, ids(index)) == (None, [])
    put(index, RUN_IDS[0], 1)
    assert ids(index) == [RUN_IDS[0]]
    index.close()
    assert neighbour.read_text() == "precious"


def test_a_file_of_a_gateway_with_tenants_is_not_shown_to_everybody(tmp_path: Path) -> None:
    """REQ-0017: nor the other way round."""
    path = tmp_path / "index.db"
    new_file(path)
    index = SqliteRunIndex(path, tenants=True)
    assert ids(index) == []
    index.close()


def test_a_whole_file_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    new_file(path)
    index = SqliteRunIndex(path, tenants=False)
    assert index.position == FeedPosition("created", Revision(300))
    assert len(ids(index)) == 50
    assert index.counts(None)[RunStatus.PENDING] == 300
    index.close()


def test_a_summary_has_the_fields_of_its_snapshot() -> None:
    run = replace(a_snapshot(), error="e", attempt=3)
    shown = summary(run, run.run_id, run.updated_at)
    assert (shown.error, shown.attempt) == ("e", 3)


STORED = NOW + 1000


def stored(index: SqliteRunIndex, run: RunSnapshot, revision: int, stored_at: float) -> None:
    change = Change(run.run_id, Revision(revision), run, None, stored_at)
    index.apply([change], FeedPosition("created", Revision(revision)))


def newer_than(index: SqliteRunIndex, mark: float) -> list[str]:
    page = index.page(RunFilter(updated_after=mark), None, 50)
    return [place.run_id for place in page.places]


def test_lists_follow_the_clock_of_the_store() -> None:
    """D12: an end that a host with a slow clock wrote was older than what its poller had seen."""
    index = SqliteRunIndex(None, tenants=False)
    slow = a_snapshot(run_id=RUN_IDS[0], updated_at=NOW - 300, heartbeat_at=NOW - 300)
    stored(index, slow, 1, STORED)
    stored(index, a_snapshot(run_id=RUN_IDS[1], updated_at=NOW + 300, heartbeat_at=NOW + 300), 2, STORED + 1)
    page = index.page(RunFilter(), None, 50)
    shown = [msgspec.json.decode(data) for data in page.summaries]
    assert [(run["run_id"], run["updated_at"]) for run in shown] == [
        (RUN_IDS[1], STORED + 1),
        (RUN_IDS[0], STORED),
    ]
    mark = max(run["updated_at"] for run in shown)
    assert newer_than(index, mark) == []
    stored(index, replace(slow, status=RunStatus.FAILED, updated_at=NOW - 299), 3, STORED + 2)
    assert newer_than(index, mark) == [RUN_IDS[0]]
    index.close()


@pytest.mark.parametrize("is_new_gateway", [False, True])
def test_a_heartbeat_leaves_a_run_in_its_place(*, is_new_gateway: bool) -> None:
    """D12: what the store's clock says of a heartbeat is not when the run changed."""
    index = SqliteRunIndex(None, tenants=False)
    run = a_snapshot(RunStatus.RUNNING, OWNER, run_id=RUN_IDS[0])
    if not is_new_gateway:
        stored(index, run, 1, STORED)
    stored(index, replace(run, heartbeat_at=run.updated_at + 7), 2, STORED + 7)
    assert newer_than(index, STORED) == []
    assert newer_than(index, STORED - 1) == [RUN_IDS[0]]
    index.close()


def steps_of(index: SqliteRunIndex, wanted: RunFilter, after: Place | None = None) -> int:
    """How many steps of SQLite's machine a page of 50 takes: no clock, so a busy machine is no matter."""
    index.page(wanted, after, 50)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    index._db.set_progress_handler(step, 1)
    index.page(wanted, after, 50)
    index._db.set_progress_handler(None, 1)
    return steps


CHOSEN: dict[str, Any] = {
    "status": RunStatus.FAILED,
    "flow": "f1",
    "tag": "t1",
    "workflow_yaml_sha256": "s1",
    "updated_after": NOW - 1,
}
COMBINED = [
    RunFilter(**{name: CHOSEN[name] for name in chosen})
    for size in range(6)
    for chosen in itertools.combinations(CHOSEN, size)
]


def filled(runs: int, matching: int) -> SqliteRunIndex:
    """`matching` runs with all of CHOSEN, the oldest; of the others each has one, and no run has two of them.

    What walks over one filter's runs to find another's walks far.
    """
    index, changes = SqliteRunIndex(None, tenants=False), []
    for n in range(runs):
        kind = 4 if n < matching else n % 4
        run = a_snapshot(
            RunStatus.FAILED if kind in (0, 4) else RunStatus.COMPLETED,
            run_id=str(uuid.UUID(int=n)),
            flow_name="f1" if kind in (1, 4) else "f2",
            tag="t1" if kind in (2, 4) else "t2",
            workflow_yaml_sha256="s1" if kind in (3, 4) else None,
            updated_at=NOW + n,
        )
        changes.append(Change(run.run_id, Revision(n + 1), run, None))
    index.apply(changes, FeedPosition("created", Revision(runs)))
    return index


def test_every_combination_of_filters_costs_the_page() -> None:
    """D15: `tag` with `status` walked over every run of the tag, and so with the others."""
    small, large = filled(600, 120), filled(6_000, 120)
    for wanted in COMBINED:
        for after in (None, Place(NOW + 110, str(uuid.UUID(int=110)))):
            few, many = steps_of(small, wanted, after), steps_of(large, wanted, after)
            assert many <= 1.1 * few, (wanted, after, few, many)
    small.close()
    large.close()
