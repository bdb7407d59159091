"""A10, A14: watchers by the thousand, that never read, come back at once, pipeline: on a real gateway."""

import asyncio
import json
import resource
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Self

import pytest

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.logs import LogLine
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.wiring import JetStreamBackend, new_run_id, open_backend
from support.builders import OWNER, a_job, a_snapshot
from support.gateway_process import GatewayProcess, gateway_process
from support.nats_server import raw_nats, streams_of
from support.programs import Programs
from support.waiting import until

pytestmark = pytest.mark.fresh_start  # memory is measured, and more files are allowed

CROWD = 5_000
ALLOWED = 1_000
AT_ONCE = 250
KB_PER_WATCHER = 60.0
"""A connection, a request, a task and an event: what an idle watcher may cost."""
CONSUMERS = 40
"""More than the feeds of a gateway need, even while a busy one renews some; far fewer than the watchers."""


@pytest.fixture
def gateway(programs: Programs, config: NatsBackendConfig) -> Iterator[GatewayProcess]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < CROWD + 500:
        if hard < CROWD + 500:
            pytest.skip(f"needs {CROWD + 500} open files, and {hard} are allowed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (CROWD + 500, hard))
    with gateway_process(programs, config) as process:
        yield process


@asynccontextmanager
async def a_run(config: NatsBackendConfig) -> AsyncIterator[tuple[JetStreamBackend, str]]:
    async with open_backend(config, "test") as backend:
        run_id = new_run_id()
        revision = await backend.runs.create(run_id, running(run_id))
        await backend.queue.publish(a_job(run_id=run_id), revision)  # without a job, a sweep would end it
        yield backend, run_id


def running(run_id: str, **changes: object) -> RunSnapshot:
    return a_snapshot(RunStatus.RUNNING, OWNER, run_id=run_id, **changes)


class Crowd:
    """Connections that watch a run and read no more than the first line of the answer."""

    def __init__(self, port: int, run_id: str, behind: bytes = b"") -> None:
        """`behind`: what each sends at once after its request."""
        self._port = port
        self._request = f"GET /runs/{run_id}/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() + behind
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._writers: list[asyncio.StreamWriter] = []
        self.answers: Counter[int] = Counter()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    async def come(self, count: int) -> None:
        await asyncio.gather(*(self._one() for _ in range(count)))

    async def _one(self) -> None:
        async with self._gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=4096)
            self._writers.append(writer)
            writer.write(self._request)
            line = await reader.readline()
            self.answers[int(line.split()[1])] += 1

    def leave(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def watchers_of(gateway: GatewayProcess) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return int(float(text.split("\npyoco_watchers ")[1].split("\n")[0]))


async def consumers(config: NatsBackendConfig) -> int:
    async with raw_nats(config.nats_url) as client:
        infos = [await client.jetstream().stream_info(name) for name in streams_of(config)]
        return sum(info.state.consumer_count for info in infos)


@pytest.mark.parametrize(
    "count", [pytest.param(1_500, marks=pytest.mark.slow), pytest.param(CROWD, marks=pytest.mark.long)]
)
async def test_a10_a_crowd_of_watchers_is_a_thousand_and_a_polite_refusal(
    gateway: GatewayProcess, config: NatsBackendConfig, count: int
) -> None:
    async with a_run(config) as (_, run_id), Crowd(gateway.port, run_id) as crowd:
        await crowd.come(1)
        before = gateway.rss_mb()
        await crowd.come(count - 1)
        grown = gateway.rss_mb() - before
        assert crowd.answers == {200: ALLOWED, 503: count - ALLOWED}
        assert await consumers(config) < CONSUMERS
        assert grown * 1000 / count < KB_PER_WATCHER, f"{grown:.0f} MB for {count}"
        crowd.leave()
        await until(lambda: watchers_of(gateway), lambda count: count == 0)


@pytest.mark.parametrize(
    "count", [pytest.param(300, marks=pytest.mark.slow), pytest.param(ALLOWED, marks=pytest.mark.long)]
)
async def test_a10_a_storm_of_reconnects_leaves_nothing_behind(
    gateway: GatewayProcess, config: NatsBackendConfig, count: int
) -> None:
    async with a_run(config) as (_, run_id), Crowd(gateway.port, run_id) as crowd:
        await crowd.come(count)
        crowd.leave()
        await until(lambda: watchers_of(gateway), lambda count: count == 0)
        before, files = gateway.rss_mb(), gateway.open_files()
        for _ in range(5):
            await crowd.come(count)
            crowd.leave()
        await until(lambda: watchers_of(gateway), lambda count: count == 0)

        async def open_files() -> int:
            return gateway.open_files()

        await until(open_files, lambda count: count <= files + 2)
        assert await consumers(config) < CONSUMERS
        assert gateway.rss_mb() - before < 20.0
        assert set(crowd.answers) <= {200, 503}


async def test_a10_a_watcher_that_never_reads_holds_no_queue(
    gateway: GatewayProcess, config: NatsBackendConfig
) -> None:
    """A hundred megabytes of changes and lines pass by; who reads gets the last of them."""
    filler = "x" * 50_000
    async with a_run(config) as (backend, run_id), Crowd(gateway.port, run_id) as deaf:
        await deaf.come(20)  # each may keep what is on its way to it, some 2 MB
        stored = await backend.runs.get(run_id)
        assert stored is not None
        before, revision = gateway.rss_mb(), stored.revision
        for n in range(1000):
            revision = await backend.runs.update(
                run_id, running(run_id, params={"n": n, "x": filler}), revision
            )
            await backend.task_logs.append(
                run_id, [LogLine(attempt=1, n=n, task="t", stream="stdout", text=filler, ts=0.0)], str(n)
            )
        ended = a_snapshot(RunStatus.COMPLETED, OWNER, run_id=run_id)
        await backend.runs.update(run_id, ended, revision)
        assert await last_status(gateway, run_id) == "COMPLETED"
        grown = gateway.rss_mb() - before
        assert grown < 80.0, f"{grown:.0f} MB"


async def last_status(gateway: GatewayProcess, run_id: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**20)
    writer.write(
        f"GET /runs/{run_id}/watch HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode()
    )
    lines = (await reader.read()).decode().splitlines()
    writer.close()
    data = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    status: str = data[-1]["snapshot"]["status"]
    return status


async def test_a14_a_watch_with_a_request_behind_it_frees_its_place_when_its_client_leaves(
    gateway: GatewayProcess, config: NatsBackendConfig
) -> None:
    """D51: each connection sends a watch and a second request behind it, reads the head, and hangs up."""
    behind = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with a_run(config) as (_, run_id), Crowd(gateway.port, run_id, behind) as crowd:
        await crowd.come(ALLOWED)
        assert crowd.answers == {200: ALLOWED}
        files, said = gateway.open_files(), len(gateway.program.output)
        crowd.leave()
        await until(lambda: watchers_of(gateway), lambda count: count == 0)

        async def open_files() -> int:
            return gateway.open_files()

        await until(open_files, lambda count: count <= files - ALLOWED + 2)
        assert len(gateway.program.output) - said < 10_000
        await crowd.come(1)
        assert crowd.answers == {200: ALLOWED + 1}


@pytest.mark.parametrize("count", [100, 3_000])
async def test_a14_watches_pipelined_on_one_connection_take_one_place_and_leave_none(
    gateway: GatewayProcess, config: NatsBackendConfig, count: int
) -> None:
    """D51: nothing is kept for requests that were sent ahead, and too many of them end the connection."""
    async with a_run(config) as (_, run_id), Crowd(gateway.port, run_id) as crowd:
        await crowd.come(1)
        request = f"GET /runs/{run_id}/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        for _ in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            writer.write(request * count)
            await asyncio.sleep(0)
            writer.close()
        await until(lambda: watchers_of(gateway), lambda found: found == 1)
        crowd.leave()
        await until(lambda: watchers_of(gateway), lambda found: found == 0)
        assert len(gateway.program.output) < 50_000
