"""F12: uploads that break off, workers that are killed while they install, wheels that go while runs wait.

The flow of every run comes in a wheel whose modules are imported one after the other, with pauses: a run
whose code is replaced under it would find another version, or none.
"""

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from audit import patiently, stored_runs
from members import HOST, Member
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from reports import Report, Scale
from sites import Site, installation
from support.wheels import a_wheel, wheel_name
from workloads import Runs

PACKAGE = "my_flows"
PARTS = ("one", "two", "three")
WORKFLOW = 'flow: {graph: "one >> two >> three"}\ntasks:\n' + "".join(
    f'  {part}: {{callable: "{PACKAGE}.tasks:{part}"}}\n' for part in PARTS
)
TASKS = """
import importlib, time

def version_of(part):
    time.sleep({pause})
    return [importlib.import_module("{package}.part_" + part).VERSION]

def one(): return version_of("one")
def two(one): return one + version_of("two")
def three(two): return two + version_of("three")
"""
PAUSE_SEC = 0.4
BALLAST_BYTES = 3_000_000
"""So large that an upload takes more than one packet, and an install longer than a look at it."""
PATIENCE_SEC = 90.0
SYNC_SEC = 0.3


@dataclass(eq=False)
class WheelRuns(Runs):
    """Runs of whatever version there is; where there is none they fail, and say so."""

    async def act(self, site: Site, chance: random.Random) -> None:
        answer = await site.ask(
            "POST",
            "/runs/yaml",
            chance,
            files={"workflow": ("flow.yaml", WORKFLOW.encode(), "application/yaml")},
            data={"flow_name": "wheel"},
            headers={"Idempotency-Key": f"{chance.getrandbits(64):x}"},
        )
        assert answer.status_code == 200, answer.text
        self.acknowledged[answer.json()["run_id"]] = "wheel"

    async def broken(self, site: Site) -> list[str]:
        return [*await super().broken(site), *_mixed(await patiently(stored_runs, site))]


def _mixed(runs: dict[str, RunSnapshot]) -> Iterator[str]:
    for run_id, run in runs.items():
        versions = [wheel.version for wheel in run.wheels or ()]
        if run.status is RunStatus.COMPLETED:
            if run.result != _result_of(versions):
                yield f"{run_id}: ran {run.result} with {versions}"
        elif versions:
            yield f"{run_id}: began with {versions} and ended {run.status}: {run.error}"


def _result_of(versions: Sequence[str]) -> dict[str, list[str]]:
    """Every part of the same wheel."""
    return {PARTS[-1]: [*versions] * len(PARTS)}


@dataclass
class Registry:
    """What a person does who deploys: versions that only go up."""

    site: Site
    chance: random.Random
    minor: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def next_wheel(self) -> tuple[str, bytes]:
        self.minor += 1
        version = f"0.{self.minor}.0"
        tasks = TASKS.format(pause=PAUSE_SEC, package=PACKAGE)
        parts = {f"{PACKAGE}/part_{part}.py": f"VERSION = {version!r}\n" for part in PARTS}
        ballast = {f"{PACKAGE}/ballast.txt": self.chance.randbytes(BALLAST_BYTES).hex()}
        files = {f"{PACKAGE}/tasks.py": tasks, **parts, **ballast}
        return wheel_name(PACKAGE, version), a_wheel(PACKAGE, version, files=files)

    async def upload(self, name: str, data: bytes) -> None:
        """A client that heard nothing asks again; 409 says that it was heard after all."""
        answer = await self.site.ask("POST", "/wheels", self.chance, files={"wheel": (name, data)})
        assert answer.status_code in (200, 409), answer.text
        assert name in await self.names(), name

    async def names(self) -> list[str]:
        answer = await self.site.ask("GET", "/wheels", self.chance)
        assert answer.status_code == 200, answer.text
        return [wheel["name"] for wheel in answer.json()]

    async def delete_all(self) -> None:
        for name in await self.names():
            answer = await self.site.ask("DELETE", f"/wheels/{name}", self.chance)
            assert answer.status_code in (200, 404), answer.text

    async def installed_everywhere(self, name: str) -> float:
        """Until every worker says that it has this wheel and no other; the seconds it took."""
        began = time.monotonic()
        while True:
            workers = (await self.site.ask("GET", "/workers", self.chance, params={"scope": "all"})).json()
            have = [
                [wheel["name"] for wheel in worker["wheel_sync"].get("installed_wheels", [])]
                for worker in workers
            ]
            took = time.monotonic() - began
            if have == [[name]] * len(self.site.workers) or took > PATIENCE_SEC:
                return took
            await asyncio.sleep(0.1)

    # Faults

    async def break_off(self, report: Report) -> None:
        """The connection is cut in the middle of an upload; then the client sends it again."""
        name, data = self.next_wheel()
        await asyncio.to_thread(self._send_half, name, data)
        self.done["upload cut"] += 1
        report.must(f"half of {name} is not registered", holds=name not in await self.names())
        await self.upload(name, data)

    def _send_half(self, name: str, data: bytes) -> None:
        request = httpx2.Request("POST", f"http://{HOST}/wheels", files={"wheel": (name, data)})
        body = request.read()
        head = "".join(f"{key}: {value}\r\n" for key, value in request.headers.items())
        cut = self.chance.randrange(1, len(body))
        with socket.create_connection((HOST, self.chance.choice(self.site.gateways).port)) as connection:
            # Closed with a reset, as by a machine that has lost its network.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(f"POST /wheels HTTP/1.1\r\n{head}\r\n".encode() + body[:cut])

    async def kill_gateway(self, _report: Report) -> None:
        """In the middle of storing an upload; then the client sends it again, to any gateway."""
        name, data = self.next_wheel()
        uploading = asyncio.ensure_future(self.upload(name, data))
        await asyncio.sleep(self.chance.uniform(0.0, 0.3))
        gateway = self.chance.choice(self.site.gateways)
        await gateway.kill()
        await gateway.start()
        self.done["gateway killed during an upload"] += 1
        await uploading

    async def kill_worker(self, _report: Report) -> None:
        """While it installs: at a random moment after its unfinished directory is there."""
        name, data = self.next_wheel()
        worker = self.chance.choice(self.site.workers)
        await self.upload(name, data)
        deadline = time.monotonic() + PATIENCE_SEC
        while not _is_installing(self.site, worker) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        await asyncio.sleep(self.chance.uniform(0.0, 1.0))
        was_installing = _is_installing(self.site, worker)
        await worker.kill()
        await worker.start()
        self.done["worker killed during an install" if was_installing else "worker killed after it"] += 1

    async def delete_queued(self, report: Report) -> None:
        """The wheel goes while runs wait for it; later there is another."""
        await self.delete_all()
        report.must("no wheel is left", holds=await self.names() == [])
        self.done["wheel deleted with runs queued"] += 1
        await asyncio.sleep(self.chance.uniform(0.0, 2.0))
        await self.upload(*self.next_wheel())


def _is_installing(site: Site, worker: Member) -> bool:
    return any((Path(site.config.wheel_sync_dir) / worker.name).glob(".unfinished-*"))


async def wheels_break(seed: int, scale: Scale) -> Report:
    report = Report("F12", "uploads cut, workers killed while they install, wheels deleted with runs queued")
    chance = random.Random(seed)  # noqa: S311
    async with installation(
        workers=2,
        wheel_sync_enabled=True,
        wheel_sync_interval_sec=SYNC_SEC,
        wheel_sync_dir="{directory}/wheels",
    ) as site:
        registry, workload = Registry(site, chance), WheelRuns()
        await registry.upload(*registry.next_wheel())
        faults = [registry.break_off, registry.kill_gateway, registry.kill_worker, registry.delete_queued]
        working = asyncio.ensure_future(_keep_running(site, workload, random.Random(seed + 1)))  # noqa: S311
        for _ in range(max(2, min(12, scale.acts // 60))):
            for fault in chance.sample(faults, len(faults)):
                await fault(report)
        name, data = registry.next_wheel()
        await registry.upload(name, data)
        repaired = await registry.installed_everywhere(name)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await workload.settled(site, PATIENCE_SEC)
        before = set(workload.acknowledged)
        for _ in range(10):
            await workload.act(site, chance)
        took = await workload.settled(site, PATIENCE_SEC)
        runs = await patiently(stored_runs, site)
        ends = Counter(str(run.status) for run in runs.values())
        report.facts += [
            f"{len(runs)} runs ({', '.join(f'{count} {status}' for status, count in sorted(ends.items()))})",
            ", ".join(f"{count} × {what}" for what, count in sorted(registry.done.items())),
            f"{registry.minor} versions; the last was on every worker {repaired:.1f} s after its upload",
        ]
        report.must(f"the next sync repairs ({repaired:.1f} s)", holds=repaired < PATIENCE_SEC)
        report.must(f"all ended ({took:.1f} s)", holds=took < PATIENCE_SEC)
        last = [runs[run_id].result for run_id in workload.acknowledged.keys() - before if run_id in runs]
        wanted = _result_of([f"0.{registry.minor}.0"])
        report.must(f"later runs have the last version ({last})", holds=last == [wanted] * 10)
        report.broken += await workload.broken(site)
        report.broken += await _unexplained(runs)
    return report


async def _keep_running(site: Site, workload: WheelRuns, chance: random.Random) -> None:
    while True:
        await workload.act(site, chance)
        await asyncio.sleep(chance.uniform(0.2, 1.2))


async def _unexplained(runs: dict[str, RunSnapshot]) -> list[str]:
    """A run may only fail for want of the package."""
    return [
        f"{run_id}: {run.status} {run.error}"
        for run_id, run in runs.items()
        if run.status is not RunStatus.COMPLETED and PACKAGE not in (run.error or "")
    ]
