"""The campaigns, by the ids of the faults they try. Each answers with what it did and what was broken."""

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from audit import messages_in
from faults import Faults, How
from members import HOST, GatewayMember, Member
from sites import ACK_WAIT_SEC, GRACE_SEC, Site, installation
from workloads import Runs, crowd

SWEEP_SEC = 75.0
"""Two looks of the gateway's sweep, which ends runs whose job is gone."""
SMALL_STREAMS = {"dlq_max_bytes": 1_000_000, "logs_max_bytes": 1_000_000}
"""What these may take at most is set aside for them when they are made."""
SOAK_SEC = 3000.0
"""Shorter than this the growth of memory says more about warming up than about leaks."""
CONVERGED_SEC = ACK_WAIT_SEC + 5.0


@dataclass
class Report:
    fault: str
    title: str
    facts: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def must(self, promise: str, *, holds: bool) -> None:
        if not holds:
            self.broken.append(promise)


@dataclass(frozen=True)
class Scale:
    """How much of everything: `acts` client actions per campaign."""

    acts: int
    clients: int = 8
    soak_sec: float = 60.0
    rest: float = 0.05


SHORT = Scale(acts=120, soak_sec=10.0, rest=0.6)
LONG = Scale(acts=2000, clients=16, soak_sec=300.0, rest=0.7)

Campaign = Callable[[int, Scale], Coroutine[Any, Any, Report]]


async def _hurt_while_working(
    report: Report,
    site: Site,
    chance: random.Random,
    scale: Scale,
    members: Sequence[Member],
    *,
    how: Sequence[How] = ("kill", "freeze"),
    patience: float = CONVERGED_SEC,
) -> None:
    """The scheme of most campaigns: work, hurt, stop hurting, wait, look."""
    workload = Runs()
    faults = Faults(members, chance, how=how)
    hurting = asyncio.ensure_future(faults.run())
    try:
        await crowd(site, workload, chance, scale.clients, scale.acts, scale.rest)
    finally:
        faults.stop()
        await hurting
    took = await workload.settled(site, max(patience, SWEEP_SEC))
    report.facts += [
        workload.summary(),
        ", ".join(f"{count} × {what}" for what, count in sorted(faults.done.items())) or "no faults",
        f"all ended {took:.1f} s after the last fault",
        "answers: "
        + ", ".join(f"{count} × {status or 'none'}" for status, count in sorted(site.answers.items())),
    ]
    report.must(f"all ended within {patience:g} s (took {took:.1f} s)", holds=took <= patience)
    report.must("something was hurt", holds=bool(faults.done))
    report.broken += await workload.broken(site)


async def workers_die(seed: int, scale: Scale) -> Report:
    report = Report("F3, F7", "workers are killed and frozen; cancels at random moments")
    chance = random.Random(seed)  # noqa: S311
    async with installation(workers=3) as site:
        # Behind a frozen worker's jobs stand AckWait, and a flow that must be asked to stop.
        await _hurt_while_working(
            report, site, chance, scale, site.workers, patience=CONVERGED_SEC + GRACE_SEC + ACK_WAIT_SEC
        )
    return report


async def gateways_die(seed: int, scale: Scale) -> Report:
    report = Report("F4, F7", "gateways are killed and frozen between any two steps of a submit or cancel")
    chance = random.Random(seed)  # noqa: S311
    async with installation() as site:
        await _hurt_while_working(report, site, chance, scale, site.gateways, patience=SWEEP_SEC)
    return report


async def nats_dies(seed: int, scale: Scale) -> Report:
    report = Report("F5", "the only nats-server is killed every few seconds")
    chance = random.Random(seed)  # noqa: S311
    async with installation() as site:
        await _hurt_while_working(report, site, chance, scale, site.nats, how=("kill",), patience=SWEEP_SEC)
        await _is_back_soon(report, site, chance)
    return report


async def _is_back_soon(report: Report, site: Site, chance: random.Random) -> None:
    """503 within 2 s of NATS going away, and 200 within 3 s of its return."""
    node = site.nats[0]
    await node.kill()
    began = time.monotonic()
    answer = await site.once("POST", "/runs", chance, json={"flow_name": "tiny"})
    refused = time.monotonic() - began
    report.must(
        "a submit without NATS is answered 503", holds=answer is not None and answer.status_code == 503
    )
    await node.start()
    began = time.monotonic()
    await site.ask("POST", "/runs", chance, json={"flow_name": "tiny"})
    back = time.monotonic() - began
    report.facts.append(
        f"503 after {refused:.1f} s without NATS; submits again {back:.1f} s after its return"
    )
    report.must(f"503 within 2.5 s (took {refused:.1f} s)", holds=refused <= 2.5)
    report.must(f"back within 3 s (took {back:.1f} s)", holds=back <= 3.0)


async def a_node_dies(seed: int, scale: Scale) -> Report:
    report = Report("F6", "three nodes, three replicas: one at a time is killed or frozen")
    chance = random.Random(seed)  # noqa: S311
    async with installation(nats_count=3) as site:
        await _hurt_while_working(report, site, chance, scale, site.nats, patience=SWEEP_SEC)
    return report


async def everything_dies(seed: int, scale: Scale) -> Report:
    report = Report("F3 to F7", "any member is killed or frozen")
    chance = random.Random(seed)  # noqa: S311
    async with installation() as site:
        await _hurt_while_working(report, site, chance, scale, site.members, patience=SWEEP_SEC)
    return report


async def disk_is_full(seed: int, scale: Scale) -> Report:
    report = Report("F10", "JetStream has no room left, and later has")
    chance = random.Random(seed)  # noqa: S311
    async with installation(max_file="12MB", gateways=1, workers=1, **SMALL_STREAMS) as site:
        workload, refused, large = Runs(), 0, {"flow_name": "tiny", "params": {"x": "y" * 200_000}}
        for _ in range(400):
            answer = await site.once("POST", "/runs", chance, json=large)
            if answer is not None and answer.status_code == 200:
                workload.acknowledged[answer.json()["run_id"]] = "other"
            elif answer is not None:
                report.must(f"a refusal is a 503: {answer.text}", holds=answer.status_code == 503)
                refused += 1
                if refused >= 10:
                    break
        report.facts.append(f"{len(workload.acknowledged)} runs accepted, then {refused} × 503")
        report.must("the store was full", holds=refused >= 10)
        read = await site.once("GET", "/runs", chance)
        report.must("lists are still answered", holds=read is not None and read.status_code == 200)
        await site.nats[0].kill()
        config = site.directory / "nats-0.conf"
        config.write_text(config.read_text().replace("12MB", "1GB"))
        await site.nats[0].start()
        await crowd(site, workload, chance, 4, min(40, scale.acts))
        took = await workload.settled(site, SWEEP_SEC)
        report.facts.append(f"with room again {workload.summary()}; all ended after {took:.1f} s")
        report.broken += await workload.broken(site)
    return report


POISON = (
    b"\xff\xfe\x00",
    b"{",
    b"[]",
    b'{"run_id": 5}',
    b"[" * 50_000,
    b'{"run_id": "x", "flow_name": null}',
)


async def poisoned(seed: int, scale: Scale) -> Report:
    report = Report("F11", "jobs that nobody can read, among others")
    chance = random.Random(seed)  # noqa: S311
    async with installation(gateways=1, workers=2) as site:
        workload = Runs()
        working = asyncio.ensure_future(crowd(site, workload, chance, scale.clients, scale.acts, scale.rest))
        async with site.jetstream() as js:
            for payload in POISON:
                await js.publish(f"{site.config.work_subject_prefix}.default", payload)
        await working
        took = await workload.settled(site, CONVERGED_SEC)
        letters = await messages_in(site, site.config.dlq_stream)
        report.facts.append(
            f"{workload.summary()}, {len(POISON)} poisoned, {letters} dead letters, {took:.1f} s"
        )
        report.must(f"one dead letter for each ({letters})", holds=letters == len(POISON))
        report.must("no worker ended", holds=all(worker.is_running for worker in site.workers))
        report.broken += await workload.broken(site)
    return report


async def rolled(seed: int, scale: Scale) -> Report:
    report = Report("F13", "gateways and workers are restarted one by one under load")
    chance = random.Random(seed)  # noqa: S311
    async with installation() as site:
        workload = Runs()
        working = asyncio.ensure_future(crowd(site, workload, chance, scale.clients, scale.acts, scale.rest))
        slowest = 0.0
        for member in [*site.gateways, *site.workers]:
            slowest = max(slowest, await member.stop())
            await member.start()
        await working
        took = await workload.settled(site, CONVERGED_SEC)
        unexpected = set(site.answers) - {200, 503, 0}
        report.facts.append(
            f"{workload.summary()}; the slowest stop took {slowest:.1f} s; settled {took:.1f} s"
        )
        report.must(f"nothing but 200 and 503 ({unexpected})", holds=not unexpected)
        report.broken += await workload.broken(site)
    return report


async def restored(seed: int, scale: Scale) -> Report:
    report = Report("F14", "backup, wipe, restore: the same listing, byte for byte")
    chance = random.Random(seed)  # noqa: S311
    async with installation(gateways=1, workers=1) as site:
        workload = Runs()
        await crowd(site, workload, chance, scale.clients, scale.acts)
        await workload.settled(site, CONVERGED_SEC)
        await site.workers[0].stop()
        before = await _listing(site, chance)
        node, data = site.nats[0], site.directory / "nats-0"
        await node.stop()
        backup = site.directory / "backup"
        await asyncio.to_thread(shutil.copytree, data, backup)
        await asyncio.to_thread(shutil.rmtree, data)
        await asyncio.to_thread(shutil.copytree, backup, data)
        await node.start()
        await site.gateways[0].kill()
        await site.gateways[0].start()
        after = await _listing(site, chance)
        report.facts.append(f"{workload.summary()}, {sum(map(len, before)):,} bytes of lists")
        report.must("the lists are the same", holds=before == after)
        report.broken += await workload.broken(site)
    return report


async def _listing(site: Site, chance: random.Random) -> list[bytes]:
    pages, cursor = [], None
    while True:
        query = {"limit": "200", "include": "full", "updated_after": "0"} | (
            {"cursor": cursor} if cursor else {}
        )
        answer = await site.ask("GET", "/runs", chance, params=query)
        assert answer.status_code == 200, answer.text
        pages.append(answer.content)
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return pages


async def stopped(seed: int, _scale: Scale) -> Report:
    report = Report("F17", "SIGTERM with 200 watchers and 20 runs")
    chance = random.Random(seed)  # noqa: S311
    async with installation(gateways=2, workers=2) as site:
        workload = Runs(cancel_share=0.0, pauses=(1.0,))
        await crowd(site, workload, chance, 20, 20)
        gateway = site.gateways[0]
        watchers = [
            asyncio.ensure_future(_watch(gateway, run_id)) for run_id in list(workload.acknowledged) * 10
        ]
        await asyncio.sleep(0.5)  # long enough for most to be connected; how many does not matter
        left = await gateway.stop()
        drained = await site.workers[0].stop()
        await asyncio.gather(*watchers)
        took = await workload.settled(site, CONVERGED_SEC)
        report.facts.append(
            f"{len(watchers)} watchers; gateway gone after {left:.1f} s, worker after {drained:.1f} s, "
            f"{workload.summary()} ended {took:.1f} s later"
        )
        report.must(f"the gateway is gone within 5 s ({left:.1f} s)", holds=left <= 5.0)
        report.broken += await workload.broken(site)
    return report


async def _watch(gateway: GatewayMember, run_id: str) -> None:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(HOST, gateway.port)
        writer.write(f"GET /runs/{run_id}/watch HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        while await reader.read(65536):
            pass
        writer.close()


async def soaked(seed: int, scale: Scale) -> Report:
    report = Report("F15", f"10 runs/s and 200 watchers for {scale.soak_sec:g} s")
    chance = random.Random(seed)  # noqa: S311
    async with installation(gateways=1, workers=1) as site:
        workload = Runs(cancel_share=0.05, pauses=(0.0,))
        gateway = site.gateways[0]
        samples: list[tuple[float, float, int]] = []
        began = time.monotonic()
        watching: set[asyncio.Task[None]] = set()
        while (now := time.monotonic() - began) < scale.soak_sec:
            watching = {task for task in watching if not task.done()}
            watching |= {asyncio.ensure_future(workload.act(site, chance)) for _ in range(5)}
            await asyncio.sleep(0.5)
            newest = list(workload.acknowledged)[-5:]
            watching |= {asyncio.ensure_future(_watch(gateway, run)) for run in newest for _ in range(8)}
            samples.append((now, _rss_mb(gateway.pid), _open_files(gateway.pid)))
        await asyncio.gather(*watching)
        took = await workload.settled(site, CONVERGED_SEC)
        warm = [sample for sample in samples if sample[0] > scale.soak_sec / 2]
        slope = (warm[-1][1] - warm[0][1]) / max(1.0, warm[-1][0] - warm[0][0]) * 3600
        is_long = scale.soak_sec >= SOAK_SEC
        async with site.jetstream() as js:
            consumers = (await js.stream_info(f"KV_{site.config.runs_kv_bucket}")).state.consumer_count
        report.facts.append(
            f"{workload.summary()}; gateway {samples[0][1]:.0f} → {warm[-1][1]:.0f} MB "
            f"(second half: {slope:+.1f} MB/h{'' if is_long else ', not judged: too short for a slope'}), "
            f"files {warm[0][2]} → {warm[-1][2]}, {consumers} consumer(s), {took:.1f} s"
        )
        report.must(f"consumers stay flat ({consumers})", holds=consumers <= 2)
        report.must(f"memory stays flat ({slope:+.1f} MB/h)", holds=slope < 1.0 or not is_long)
        report.broken += await workload.broken(site)
    return report


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


CAMPAIGNS: dict[str, Campaign] = {
    "workers": workers_die,
    "gateways": gateways_die,
    "nats": nats_dies,
    "cluster": a_node_dies,
    "everything": everything_dies,
    "disk-full": disk_is_full,
    "poison": poisoned,
    "rolling": rolled,
    "restore": restored,
    "stop": stopped,
    "soak": soaked,
}

__all__ = ["CAMPAIGNS", "LONG", "SHORT", "Report", "Scale"]
