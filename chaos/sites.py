"""An installation to be hurt: nats-servers, gateways and workers in real processes, and its clients."""

import asyncio
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import nats
from nats.js.api import StreamConfig, StreamSource

from members import (
    HOST,
    GatewayMember,
    Member,
    NatsNode,
    Place,
    WorkerMember,
    gateway_member,
    nats_nodes,
    worker_member,
)
from pyoco_server.config import NatsBackendConfig
from pyoco_server.wiring import ensure_resources

ACK_WAIT_SEC = 3.0
GRACE_SEC = 1.0
AUDIT = "AUDIT"
"""A mirror of the runs' bucket that forgets nothing: every write that was accepted, in order."""
CLIENT_PATIENCE_SEC = 120.0
LOGS = Path(__file__).parents[1] / "artifacts" / "chaos" / "logs"


class GaveUp(Exception):
    """A client that repeats its request was not heard for too long."""


@dataclass
class Site:
    directory: Path
    config: NatsBackendConfig
    nats: list[NatsNode]
    gateways: list[GatewayMember]
    workers: list[WorkerMember]
    http: httpx2.AsyncClient
    answers: dict[int, int]
    """How often clients heard which status; 0: nothing."""
    slowest: float = 0.0
    """The longest that a client had to repeat itself."""
    given_up: list[str] = field(default_factory=list)
    """What clients did not wait for any longer."""

    @property
    def members(self) -> list[Member]:
        return [*self.nats, *self.gateways, *self.workers]

    def of(self, *kinds: str) -> list[Member]:
        return [member for member in self.members if member.kind in kinds]

    async def once(
        self, method: str, path: str, chance: random.Random, **options: Any
    ) -> httpx2.Response | None:
        """One try, at any gateway; None when nobody answered."""
        port = chance.choice(self.gateways).port
        try:
            answer = await self.http.request(method, f"http://{HOST}:{port}{path}", **options)
        except httpx2.HTTPError:
            self.answers[0] = self.answers.get(0, 0) + 1
            return None
        self.answers[answer.status_code] = self.answers.get(answer.status_code, 0) + 1
        return answer

    async def ask(self, method: str, path: str, chance: random.Random, **options: Any) -> httpx2.Response:
        """As a client that repeats what was not answered, or with 503."""
        began, heard = time.monotonic(), Counter[str]()
        while time.monotonic() < began + CLIENT_PATIENCE_SEC:
            answer = await self.once(method, path, chance, **options)
            if answer is not None and answer.status_code != 503:
                self.slowest = max(self.slowest, time.monotonic() - began)
                return answer
            heard["nothing" if answer is None else answer.text[:200]] += 1
            await asyncio.sleep(chance.uniform(0.05, 0.3))
        raise GaveUp(f"{method} {path} heard {dict(heard)}")

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[Any]:
        client = await nats.connect(self.config.nats_url.split(","))
        try:
            yield client.jetstream(timeout=10)
        finally:
            await client.close()


@dataclass
class Layout:
    """Where members are and what they take for the time, where that is not here and now."""

    nats_hosts: list[str] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    """By the names of members."""
    environs: dict[str, dict[str, str]] = field(default_factory=dict)

    def apply(self, site: Site) -> None:
        for member in site.members:
            member.where = self.places.get(member.name)
            member.environ |= self.environs.get(member.name, {})


@asynccontextmanager
async def installation(
    *,
    nats_count: int = 1,
    gateways: int = 2,
    workers: int = 2,
    max_file: str | None = None,
    layout: Layout | None = None,
    has_audit: bool = True,
    **settings: Any,
) -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="pyoco-chaos-") as name:
        directory = Path(name)
        layout = layout or Layout()
        hosts = layout.nats_hosts or [HOST] * nats_count
        nodes = nats_nodes(directory, hosts, max_file)
        config = NatsBackendConfig(
            **{
                "nats_url": ",".join(node.url for node in nodes),
                "jetstream_replicas": len(nodes),
                "consumer_ack_wait_sec": ACK_WAIT_SEC,
                "ack_progress_interval_sec": ACK_WAIT_SEC / 4,
                "consumer_max_deliver": 1000,
                "run_heartbeat_interval_sec": 0.5,
                "worker_heartbeat_interval_sec": 0.5,
                "cancel_grace_period_sec": GRACE_SEC,
                "workflow_event_max_receipts": 100_000,
                "wheel_sync_dir": str(directory / "wheels"),
                **{name: _placed(value, directory) for name, value in settings.items()},
            }
        )
        # No limit: clients would wait for each other's connections, and take that for a silent gateway.
        async with httpx2.AsyncClient(timeout=10, limits=httpx2.Limits(max_connections=None)) as http:
            site = Site(
                directory,
                config,
                nodes,
                [gateway_member(directory, f"gateway-{n}", config) for n in range(gateways)],
                [worker_member(directory, f"worker-{n}", config) for n in range(workers)],
                http,
                {},
            )
            layout.apply(site)
            try:
                await asyncio.gather(*(node.start() for node in nodes))
                await _prepare(site, has_audit=has_audit)
                await asyncio.gather(*(member.start() for member in [*site.gateways, *site.workers]))
                await _ready(site)
                yield site
            finally:
                await asyncio.gather(*(member.kill() for member in reversed(site.members)))
                _keep_logs(directory)


def _keep_logs(directory: Path) -> None:
    """What the members said, of the last campaign only: for when it is broken."""
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    for log in directory.glob("*.log"):
        shutil.copy(log, LOGS)


def _placed(value: Any, directory: Path) -> Any:
    """A setting may name the installation's directory, which is not known before."""
    return value.format(directory=directory) if isinstance(value, str) else value


async def _prepare(site: Site, *, has_audit: bool) -> None:
    """Streams, and the audit beside them. A young cluster may still be choosing its leaders."""
    deadline = time.monotonic() + CLIENT_PATIENCE_SEC
    while True:
        try:
            await ensure_resources(site.config)
            if has_audit:
                await _add_audit(site)
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.3)
        else:
            return


async def _add_audit(site: Site) -> None:
    async with site.jetstream() as js:
        bucket = f"KV_{site.config.runs_kv_bucket}"
        await js.add_stream(StreamConfig(name=AUDIT, mirror=StreamSource(name=bucket)))


async def _ready(site: Site) -> None:
    chance = random.Random(0)  # noqa: S311
    for gateway in site.gateways:
        while True:
            answer = await site.http.get(f"http://{HOST}:{gateway.port}/ready")
            if answer.status_code == 200:
                break
            await asyncio.sleep(0.1)
    while len((await site.ask("GET", "/workers", chance)).json()) < len(site.workers):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
