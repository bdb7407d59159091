"""The campaigns, by the ids of the faults they try. Each answers with what it did and what was broken."""

import asyncio
import random
import shutil
import time
from contextlib import suppress
from typing import Any

from audit import messages_in
from hurting import CONVERGED_SEC, SWEEP_SEC, hurt_while_working
from long_runs import held_long
from members import HOST, GatewayMember
from network_faults import a_node_is_cut_off, links_are_slow
from reports import FULL, LONG, SHORT, Campaign, Report, Scale
from sites import ACK_WAIT_SEC, GRACE_SEC, Site, installation
from soak import soaked
from wheel_faults import wheels_break
from workloads import Runs, crowd

BACKLOG_SEC = 300.0
"""For what a crowd leaves behind that submits without a pause, on a busy machine."""
SMALL_STREAMS: dict[str, Any] = {
    "dlq_max_bytes": 1_000_000,
    "logs_max_bytes": 1_000_000,
    "audit_max_bytes": 1_000_000,
}
"""What these may take at most is set aside for them when they are made."""


async def workers_die(seed: int, scale: Scale) -> Report:
    report = Report("F3, F7", "workers are killed and frozen; cancels at random moments")
    chance = random.Random(seed)  # noqa: S311
    async with installation(workers=3) as site:
        # Behind a frozen worker's jobs stand AckWait, and a flow that must be asked to stop.
        await hurt_while_working(
            report, site, chance, scale, site.workers, patience=CONVERGED_SEC + GRACE_SEC + ACK_WAIT_SEC
        )
    return report


async def gateways_die(seed: int, scale: Scale) -> Report:
    report = Report("F4, F7", "gateways are killed and frozen between any two steps of a submit or cancel")
    chance = random.Random(seed)  # noqa: S311
    async with installation() as site:
        await hurt_while_working(report, site, chance, scale, site.gateways, patience=SWEEP_SEC)
    return report


async def nats_dies(seed: int, scale: Scale) -> Report:
    report = Report("F5", "the only nats-server is killed every few seconds")
    chance = random.Random(seed)  # noqa: S311
    async with installation() as site:
        await hurt_while_working(report, site, chance, scale, site.nats, how=("kill",), patience=SWEEP_SEC)
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
        await hurt_while_working(report, site, chance, scale, site.nats, patience=SWEEP_SEC)
    return report


async def everything_dies(seed: int, scale: Scale) -> Report:
    report = Report("F3 to F7", "any member is killed or frozen")
    chance = random.Random(seed)  # noqa: S311
    async with installation() as site:
        await hurt_while_working(report, site, chance, scale, site.members, patience=SWEEP_SEC)
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
        workload = scale.workload(chance)
        await workload.prepare(site, chance)
        working = asyncio.ensure_future(
            crowd(site, workload, chance, scale.clients, scale.all_acts, scale.rest)
        )
        slowest = 0.0
        for member in [*site.gateways, *site.workers]:
            slowest = max(slowest, await member.stop())
            await member.start()
        await working
        took = await workload.settled(site, CONVERGED_SEC)
        unexpected = set(site.answers) - {200, 201, 409, 503, 0}
        report.facts.append(
            f"{workload.summary()}; the slowest stop took {slowest:.1f} s; settled {took:.1f} s"
        )
        report.must(f"nothing but 200, 201, 409 and 503 ({unexpected})", holds=not unexpected)
        report.broken += await workload.broken(site)
    return report


async def restored(seed: int, scale: Scale) -> Report:
    report = Report("F14", "backup, wipe, restore: the same listing, byte for byte")
    chance = random.Random(seed)  # noqa: S311
    async with installation(gateways=1, workers=1) as site:
        workload = Runs()
        await crowd(site, workload, chance, scale.clients, scale.acts)
        await workload.settled(site, BACKLOG_SEC)
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


CAMPAIGNS: dict[str, Campaign] = {
    "workers": workers_die,
    "gateways": gateways_die,
    "nats": nats_dies,
    "cluster": a_node_dies,
    "partition": a_node_is_cut_off,
    "slow-link": links_are_slow,
    "everything": everything_dies,
    "long-runs": held_long,
    "disk-full": disk_is_full,
    "poison": poisoned,
    "wheels": wheels_break,
    "rolling": rolled,
    "restore": restored,
    "stop": stopped,
    "soak": soaked,
}

__all__ = ["CAMPAIGNS", "FULL", "LONG", "SHORT", "Report", "Scale"]
