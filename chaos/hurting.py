"""The scheme of most campaigns: work, hurt, stop hurting, wait, look."""

import asyncio
import random
from collections.abc import Sequence

from faults import Faults, How
from members import Member
from replicas import agreed
from reports import Report, Scale
from sites import ACK_WAIT_SEC, Site
from workloads import crowd

SWEEP_SEC = 165.0
"""Five looks of the gateway's sweep, which ends runs whose job is gone."""
CONVERGED_SEC = ACK_WAIT_SEC + 5.0


async def hurt_while_working(
    report: Report,
    site: Site,
    chance: random.Random,
    scale: Scale,
    members: Sequence[Member],
    *,
    how: Sequence[How] = ("kill", "freeze"),
    patience: float = CONVERGED_SEC,
) -> None:
    workload = scale.workload(chance)
    await workload.prepare(site, chance)
    faults = Faults(members, chance, how=how)
    hurting = asyncio.ensure_future(faults.run())
    try:
        await crowd(site, workload, chance, scale.clients, scale.all_acts, scale.rest)
    finally:
        faults.stop()
        await hurting
    # By now all that was hurt is whole again.
    dead = [member.end for member in site.members if not member.is_running]
    took = await agreed(site, patience)
    took += await workload.settled(site, max(patience, SWEEP_SEC) - took)
    broken = await workload.broken(site)
    report.facts += [
        workload.summary(),
        ", ".join(f"{count} × {what}" for what, count in sorted(faults.done.items())) or "no faults",
        f"all ended {took:.1f} s after the last fault",
        f"a client repeated itself for {site.slowest:.1f} s at most",
        "answers: "
        + ", ".join(f"{count} × {status or 'none'}" for status, count in sorted(site.answers.items())),
    ]
    report.must(f"all ended within {patience:g} s (took {took:.1f} s)", holds=took <= patience)
    hurt = faults.done.total()
    report.must(f"at least {scale.min_faults} faults ({hurt})", holds=hurt >= scale.min_faults)
    report.broken += faults.ended_alone + dead + site.given_up + broken
