"""F8: runs that take three times AckWait, in tasks that hold the interpreter."""

import asyncio
import random

from audit import accepted_writes, patiently
from reports import Report, Scale
from sites import ACK_WAIT_SEC, Site, installation
from workloads import Runs, crowd

HELD_SEC = 3 * ACK_WAIT_SEC
HOLDERS = 4
SHORT_PAUSES = (0.0, 0.05, 0.3)


class Holding(Runs):
    """A task that keeps the GIL for `HELD_SEC`, as a C extension may."""

    async def act(self, site: Site, chance: random.Random) -> None:
        params = {"seconds": HELD_SEC, "marks": str(site.directory)}
        answer = await site.ask(
            "POST",
            "/runs",
            chance,
            json={"flow_name": "holding", "params": params},
            headers={"Idempotency-Key": f"{chance.getrandbits(64):x}"},
        )
        assert answer.status_code == 200, answer.text
        self.acknowledged[answer.json()["run_id"]] = "holding"


async def held_long(seed: int, scale: Scale) -> Report:
    report = Report("F8", f"tasks hold the interpreter for {HELD_SEC:g} s, three times AckWait")
    chance = random.Random(seed)  # noqa: S311
    async with installation(gateways=1, workers=2) as site:
        holding, short = Holding(), Runs(cancel_share=0.0, pauses=SHORT_PAUSES)
        # Four at once are all executors there are; the short runs behind them wait for their turn.
        rounds = max(1, min(10, scale.acts // 100))
        await asyncio.gather(
            crowd(site, holding, chance, HOLDERS, HOLDERS * rounds, HELD_SEC),
            crowd(site, short, chance, 2, min(100, scale.acts), 0.5),
        )
        took = await holding.settled(site, 10 * HELD_SEC * rounds)
        deliveries, jobs = await _deliveries(site), len(holding.acknowledged) + len(short.acknowledged)
        claims = [
            write.attempt for writes in (await patiently(accepted_writes, site)).values() for write in writes
        ]
        report.facts.append(
            f"{len(holding.acknowledged)} such runs, {len(short.acknowledged)} short ones beside them; "
            f"{deliveries - jobs} redeliveries, settled after {took:.1f} s"
        )
        report.must(f"every job is delivered once ({deliveries} of {jobs})", holds=deliveries == jobs)
        report.must("no run is claimed twice", holds=set(claims) <= {None, 1})
        report.must("no worker ended", holds=all(worker.is_running for worker in site.workers))
        report.broken += await holding.broken(site)
        report.broken += await short.broken(site)
        report.broken += await _not_held(site, holding)
    return report


async def _deliveries(site: Site) -> int:
    async with site.jetstream() as js:
        info = await js.consumer_info(site.config.work_stream, "pyoco_workers_default")
        count: int = info.delivered.consumer_seq
        return count


async def _not_held(site: Site, holding: Holding) -> list[str]:
    writes = await patiently(accepted_writes, site)
    ends = {run_id: writes[run_id][-1] for run_id in holding.acknowledged}
    return [
        f"{run_id}: {end.status} {end.error}"
        for run_id, end in ends.items()
        if end.result != {"hold": "held"} or (end.end_time or 0) - (end.start_time or 0) < HELD_SEC
    ]
