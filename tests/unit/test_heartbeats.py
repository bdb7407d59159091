"""F21: heartbeats of a whole fleet stay few, and those of a small one stay as they are set."""

import asyncio
import heapq
import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyoco_server.domain.fleet import WorkerActivity, WorkerRecord, WorkerState, newest_heartbeat
from pyoco_server.domain.runs.heartbeats import LONGEST_SEC
from pyoco_server.domain.wheels import WheelSync
from pyoco_server.memory import open_memory_backend
from pyoco_server.usecases.fleet import RegisterWorker
from pyoco_server.usecases.ports.runs import WorkerStore
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.usecases.services.sweep import INTERVAL_SEC
from pyoco_server.worker.figures import memory_bytes
from pyoco_server.worker.heartbeats import HeartbeatPace
from pyoco_server.worker.worker import EARLY_WRITES, Registration
from support import virtual_time
from support.builders import NOW, a_worker, an_activity


class Fleet:
    """Workers that write to one bucket. Each writes the heartbeats of all its runs at once, as ours do."""

    def __init__(self, runs_of: list[int], base_sec: float = 1.0, busy: float = 0.0) -> None:
        """`busy`: other writes of each worker per second."""
        self._random = random.Random(7)  # noqa: S311 - the same in every run
        self._sequence = 0
        self._busy = busy
        self.runs_of = runs_of
        self.paces = [HeartbeatPace(base_sec) for _ in runs_of]
        self._due = [
            (self._random.uniform(0, base_sec), worker, is_beat)
            for worker in range(len(runs_of))
            for is_beat in ((True, False) if busy else (True,))
        ]
        heapq.heapify(self._due)

    def beats(self, begin: float, end: float) -> Iterator[float]:
        """Times of the heartbeats until `end`, from `begin` on."""
        while self._due[0][0] < end:
            at, worker, is_beat = heapq.heappop(self._due)
            pace = self.paces[worker]
            for _ in range(self.runs_of[worker] if is_beat else 1):
                self._sequence += 1
                pace.wrote(Revision(self._sequence), at, self.runs_of[worker], is_beat=is_beat)
                if is_beat and at >= begin:
                    yield at
            wait = pace.interval_sec if is_beat else self._random.expovariate(self._busy)
            heapq.heappush(self._due, (at + wait, worker, is_beat))

    def beats_per_sec(self, begin: float, end: float) -> float:
        return len(list(self.beats(begin, end))) / (end - begin)


@pytest.mark.parametrize(
    ("runs_of", "busy"),
    [
        ([1] * 1000, 0.0),
        ([1000], 0.0),
        ([100] * 10, 0.0),
        ([500, 400, *([1] * 100), *([0] * 500)], 0.0),
        ([1] * 1000, 0.1),
        ([8] * 125, 4.0),
    ],
)
def test_a_thousand_running_runs_have_at_most_a_hundred_heartbeats_per_second(
    runs_of: list[int], busy: float
) -> None:
    fleet = Fleet(runs_of, busy=busy)
    assert fleet.beats_per_sec(60, 180) <= 100
    assert max(pace.interval_sec for pace in fleet.paces) <= LONGEST_SEC


@pytest.mark.parametrize("base_sec", [0.5, 1.0, 30.0])
def test_few_runs_have_the_interval_of_the_setting(base_sec: float) -> None:
    fleet = Fleet([3, 1, 1, 4], base_sec)
    list(fleet.beats(0, 60))
    assert {pace.interval_sec for pace in fleet.paces} == {base_sec}


def test_a_busy_worker_does_not_stretch_the_heartbeats_of_its_few_runs() -> None:
    fleet = Fleet([1] * 10, busy=50.0)
    list(fleet.beats(0, 60))
    assert max(pace.interval_sec for pace in fleet.paces) < 2.5, "500 writes per second, 10 are heartbeats"


def test_the_interval_returns_when_most_runs_have_ended() -> None:
    fleet = Fleet([1] * 2000)
    list(fleet.beats(0, 60))
    assert min(pace.interval_sec for pace in fleet.paces) > 5
    fleet.runs_of = [1] * 20 + [0] * 1980
    list(fleet.beats(60, 240))
    assert {pace.interval_sec for pace in fleet.paces[:20]} == {1.0}


def test_a_bucket_that_was_made_anew_says_nothing_about_the_load() -> None:
    pace = HeartbeatPace(1.0)
    for at, revision in enumerate([9_000_000, 1, 2, 3]):
        pace.wrote(Revision(revision), float(at), 1, is_beat=True)
    assert pace.interval_sec == 1.0


def test_a_live_run_changes_between_two_sweeps_of_any_version() -> None:
    """The sweep considers what has not changed since the last one, and every version waits that long."""
    assert LONGEST_SEC + 5 < INTERVAL_SEC == 30


# What readers get


@pytest.mark.parametrize(
    ("worker", "expected"),
    [
        (None, NOW),
        (a_worker(instance_id="i", last_heartbeat_at=NOW + 9), NOW + 9),
        (a_worker(instance_id="i", last_heartbeat_at=NOW - 9), NOW),
        (a_worker(instance_id="another", last_heartbeat_at=NOW + 9), NOW),
        (a_worker(instance_id="i", last_heartbeat_at=NOW + 9, state=WorkerState.STOPPED_GRACEFUL), NOW),
    ],
)
def test_the_heartbeat_of_a_run_is_the_newer_of_its_own_and_its_workers(
    worker: WorkerRecord | None, expected: float
) -> None:
    assert newest_heartbeat(NOW, "i", worker) == expected


# Presence


class CountedRegister(RegisterWorker):
    def __init__(self, workers: WorkerStore) -> None:
        super().__init__(workers, asyncio.get_running_loop().time)
        self.written: list[float] = []

    async def __call__(self, activity: WorkerActivity, replaces: str | None = None) -> WorkerRecord:
        self.written.append(asyncio.get_running_loop().time())
        return await super().__call__(activity, replaces)


async def _presence(runs_per_sec: float, seconds: float) -> list[float]:
    """When the record of a worker was written. Each run takes half of the time until the next."""
    async with open_memory_backend() as backend:
        register, loop = CountedRegister(backend.workers), asyncio.get_running_loop()
        registration = Registration(register, loop.time, 5.0, an_activity(), WheelSync)
        await registration.announce()
        keeping = asyncio.ensure_future(registration.run())
        for n in range(int(seconds * runs_per_sec)):
            registration.started(str(n))
            await asyncio.sleep(0.5 / runs_per_sec)
            registration.ended(str(n), None)
            await asyncio.sleep(0.5 / runs_per_sec)
        keeping.cancel()
        return register.written


def test_a_busy_worker_writes_its_record_at_its_interval() -> None:
    written = virtual_time.run(_presence(50.0, 120.0))
    assert 120 / 5 * 0.8 <= len(written) <= 120 / 5 + EARLY_WRITES + 1
    assert max(after - before for before, after in itertools.pairwise(written)) < 6


def test_the_start_and_the_end_of_a_single_run_are_written_at_once() -> None:
    written = virtual_time.run(_presence(1 / 23, 69.0))
    for at in (23.0, 34.5, 46.0, 57.5):
        assert [time for time in written if 0 <= time - at < 0.1], written


def test_a_system_that_does_not_show_its_processes_has_no_figure_of_memory(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path / "statm") is None
