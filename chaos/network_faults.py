"""F6 and F9 on a network of our own: nodes that are cut off, links that are slow, clocks that differ."""

import os
import random
from pathlib import Path

from hurting import CONVERGED_SEC, SWEEP_SEC, hurt_while_working
from members import Place
from networks import HUB_ADDRESS, LOSS, NEEDS, ONE_WAY_SEC, NoNamespaces, network
from reports import Report, Scale
from sites import ACK_WAIT_SEC, GRACE_SEC, Layout, installation

NODES = 3
CLOCKS = {"worker-0": 300, "worker-1": -300, "gateway-1": 300}
"""By how many seconds who is off. NATS and the other gateway have the time of the machine."""
FAR_SEC = 20.0
"""What the way to and fro adds: workers that start slowly, and a queue that they work off slowly."""


async def a_node_is_cut_off(seed: int, scale: Scale) -> Report:
    report = Report("F6", "three nodes, three replicas: one at a time is cut off from the network")
    chance = random.Random(seed)  # noqa: S311
    try:
        with network() as net:
            hosts = [net.add_place(f"nats-{n}") for n in range(NODES)]
            places = {f"nats-{n}": Place(net, f"nats-{n}") for n in range(NODES)}
            # This one is cut off together with its node, and sees nothing but that.
            places["worker-1"] = places["nats-1"]
            async with installation(workers=3, layout=Layout(nats_hosts=hosts, places=places)) as site:
                await hurt_while_working(
                    report, site, chance, scale, site.nats, how=("cut",), patience=SWEEP_SEC
                )
    except NoNamespaces as error:
        report.left_out = f"{NEEDS} ({error})"
    return report


async def links_are_slow(seed: int, scale: Scale) -> Report:
    report = Report(
        "F9",
        f"workers behind {2 * ONE_WAY_SEC * 1000:g} ms and {LOSS:.0%} loss are killed and frozen, "
        "with clocks 5 minutes fast and slow",
    )
    chance = random.Random(seed)  # noqa: S311
    try:
        with network() as net:
            for number in range(2):
                net.add_far_place(f"worker-{number}", seed + number)
            layout = Layout(
                nats_hosts=[HUB_ADDRESS],
                places={f"worker-{number}": Place(net, f"worker-{number}") for number in range(2)},
                environs={name: _clock(shift) for name, shift in CLOCKS.items()},
            )
            async with installation(workers=2, layout=layout) as site:
                patience = CONVERGED_SEC + GRACE_SEC + ACK_WAIT_SEC + FAR_SEC
                await hurt_while_working(report, site, chance, scale, site.workers, patience=patience)
    except NoNamespaces as error:
        report.left_out = f"{NEEDS} ({error})"
    return report


def _clock(shift_sec: int) -> dict[str, str]:
    path = [str(Path(__file__).parent / "clocks"), os.environ.get("PYTHONPATH", "")]
    return {"CHAOS_CLOCK_SHIFT_SEC": str(shift_sec), "PYTHONPATH": os.pathsep.join(path)}
