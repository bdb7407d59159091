"""F15: steady work for an hour, and what the processes take meanwhile.

The runs' history is part of a gateway's memory: its index has a row for every run that is kept. So that a
slope means a leak and not a longer history, runs are kept for five minutes here; from then on as many are
forgotten as come. For the same reason no mirror of the runs' bucket stands beside it: every run is followed
to its end by its own client instead.
"""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from audit import patiently
from figures import Taken, descendants_of, slope, taken_by
from members import HOST, GatewayMember
from reports import Report, Scale
from sites import GaveUp, Site, installation

KEPT_SEC = 300.0
RUNS_PER_SEC = 10
WATCHERS = 200
LIST_WATCHERS = 10
STANDING_RUNS = 5
SERIES = Path(__file__).parents[1] / "artifacts" / "chaos" / "soak.jsonl"
SAMPLE_SEC = 30.0
LONG_ENOUGH_SEC = 3000.0
"""Shorter than this the growth of memory says more about warming up than about leaks."""
WARM_AFTER = 1 / 3
"""Of the time: longer than runs are kept, and than pools and caches take to fill up."""
MAX_SLOPE_MB = 1.0
OURS = ("gateway", "worker", "executors")
CANCEL_SHARE = 0.05
WATCH_SEC = 60.0
MAX_LIVES = 200
TERMINAL = ("COMPLETED", "CANCELLED")


@dataclass(frozen=True)
class Sample:
    at: float
    taken: dict[str, Taken]
    consumers: int
    messages: int


@dataclass
class Soak:
    site: Site
    chance: random.Random
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    watches: int = 0
    refused: int = 0
    submitted: int = 0
    beats: int = 0

    @property
    def gateway(self) -> GatewayMember:
        return self.site.gateways[0]

    async def go_on(self, seconds: float) -> None:
        began = time.monotonic()
        standing = [await self._submit(tag="nobody") for _ in range(STANDING_RUNS)]
        background = [
            asyncio.ensure_future(self._sample(began, min(SAMPLE_SEC, seconds / 10))),
            *(asyncio.ensure_future(self._keep_watching("/runs/watch")) for _ in range(LIST_WATCHERS)),
            *(
                asyncio.ensure_future(self._keep_watching(f"/runs/{standing[n % STANDING_RUNS]}/watch"))
                for n in range(WATCHERS - LIST_WATCHERS)
            ),
        ]
        await self._submit_steadily(began, seconds)
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        self.problems += [
            f"the soak's own work failed: {task.exception()!r}"
            for task in background
            if not task.cancelled() and task.exception()
        ]
        for run_id in standing:
            await self.site.ask("POST", f"/runs/{run_id}/cancel", self.chance)
            await self._is_over(run_id)

    async def _submit_steadily(self, began: float, seconds: float) -> None:
        """At a fixed pace, whatever comes back; but no more than a crowd at once, on a busy machine."""
        lives: set[asyncio.Task[None]] = set()
        while time.monotonic() - began < seconds:
            lives = {life for life in lives if not life.done()}
            if len(lives) < MAX_LIVES:
                lives.add(asyncio.ensure_future(self._life()))
                self.submitted += 1
            self.beats += 1
            await asyncio.sleep(max(0.0, began + self.beats / RUNS_PER_SEC - time.monotonic()))
        await asyncio.gather(*lives)

    async def _life(self) -> None:
        try:
            await self._live()
        except GaveUp as error:
            self.problems.append(f"nobody answered for too long: {error}")

    async def _live(self) -> None:
        """A run, followed by three; some are cancelled."""
        run_id = await self._submit(pause=0.0)
        path = f"/runs/{run_id}/watch"
        watching = [asyncio.ensure_future(self._watch_to_its_end(path)) for _ in range(3)]
        if self.chance.random() < CANCEL_SHARE:
            await self.site.ask("POST", f"/runs/{run_id}/cancel", self.chance)
        await asyncio.gather(*watching)
        await self._is_over(run_id)

    async def _is_over(self, run_id: str) -> None:
        """A watch ends with its run, so the run has ended by now."""
        deadline = time.monotonic() + 30
        while True:
            run = (await self.site.ask("GET", f"/runs/{run_id}", self.chance)).json()
            if run["status"] in TERMINAL:
                self.ends[run["status"]] += 1
                return
            if time.monotonic() > deadline:
                self.problems.append(f"{run_id}: {run['status']} long after its watch had ended")
                return
            await asyncio.sleep(0.2)

    async def _submit(self, tag: str | None = None, **params: Any) -> str:
        wanted = {"flow_name": "tiny", "params": params} | ({"tag": tag} if tag else {})
        key = f"{self.chance.getrandbits(64):x}"
        answer = await self.site.ask(
            "POST", "/runs", self.chance, json=wanted, headers={"Idempotency-Key": key}
        )
        assert answer.status_code == 200, answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    async def _keep_watching(self, path: str) -> None:
        """Somebody looks on all the time, and comes back about every minute."""
        while True:
            if not await self._watch(path, self.chance.uniform(0.5, 1.0) * WATCH_SEC):
                await asyncio.sleep(self.chance.uniform(0.5, 1.5))

    async def _watch_to_its_end(self, path: str) -> None:
        while not await self._watch(path, None):  # noqa: ASYNC110
            await asyncio.sleep(self.chance.uniform(0.5, 1.5))

    async def _watch(self, path: str, seconds: float | None) -> bool:
        """Whether it was let in: a gateway whose NATS is too busy to answer says 503."""
        try:
            reader, writer = await asyncio.open_connection(HOST, self.gateway.port)
        except OSError:
            self.refused += 1
            return False
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
            status = await reader.readline()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while await reader.read(65536):
                        pass
        except OSError:
            status = b""
        finally:
            writer.close()
        is_let_in = b" 200 " in status
        self.watches += is_let_in
        self.refused += not is_let_in
        if not is_let_in and b" 503 " not in status:
            self.problems.append(f"{path}: {status.decode()!r}")
        return is_let_in

    async def _sample(self, began: float, interval: float) -> None:
        SERIES.parent.mkdir(parents=True, exist_ok=True)
        with SERIES.open("w") as series:
            while True:
                sample = await patiently(lambda _: self._look(began), self.site)
                self.samples.append(sample)
                series.write(json.dumps(asdict(sample)) + "\n")
                series.flush()
                await asyncio.sleep(interval)

    async def _look(self, began: float) -> Sample:
        worker = self.site.workers[0].pid
        consumers, messages = 0, 0
        async with self.site.jetstream() as js:
            for stream in await js.streams_info():
                consumers += stream.state.consumer_count
                messages += stream.state.messages
        pids = {
            "gateway": [self.gateway.pid],
            "worker": [worker],
            "executors": descendants_of(worker),
            "nats": [self.site.nats[0].pid],
        }
        at = time.monotonic() - began
        return Sample(at, {who: taken_by(its) for who, its in pids.items()}, consumers, messages)


async def soaked(seed: int, scale: Scale) -> Report:
    report = Report("F15", f"{RUNS_PER_SEC} runs/s and {WATCHERS} watchers for {scale.soak_sec:g} s")
    # Claims of idempotency keys are kept as long as runs, so that what NATS holds is steady too.
    steady: dict[str, Any] = {"runs_retention_sec": KEPT_SEC, "idempotency_ttl_sec": KEPT_SEC}
    async with installation(gateways=1, workers=1, has_audit=False, **steady) as site:
        soak = Soak(site, random.Random(seed))  # noqa: S311
        await soak.go_on(scale.soak_sec)
    refused = site.answers.get(503, 0) + site.answers.get(0, 0) + soak.refused
    report.facts.append(
        f"{soak.ends.total():,} runs ({soak.submitted / scale.soak_sec:.1f}/s), "
        f"{soak.ends['CANCELLED']:,} of them cancelled, {soak.watches:,} watches, "
        f"{refused:,} requests refused and repeated"
    )
    report.facts.append(_per_kept_run(soak))
    _judge(report, soak, is_long=scale.soak_sec >= LONG_ENOUGH_SEC, warm_at=scale.soak_sec * WARM_AFTER)
    report.broken += soak.problems
    expected = soak.submitted + STANDING_RUNS
    report.must(f"{expected} runs ended ({soak.ends.total()})", holds=soak.ends.total() == expected)
    return report


def _per_kept_run(soak: Soak) -> str:
    """While runs are only added and none is forgotten yet: what one costs the gateway."""
    filling = [sample for sample in soak.samples if KEPT_SEC / 10 <= sample.at <= KEPT_SEC]
    if len(filling) < 3 or soak.samples[-1].at < KEPT_SEC:
        return "too short to tell what a kept run costs"
    first, last = filling[0], filling[-1]
    grown = last.taken["gateway"].rss_mb - first.taken["gateway"].rss_mb
    # A run and the claim of its idempotency key are a message each.
    runs = (last.messages - first.messages) / 2
    return f"{1000 * grown / max(1.0, runs):.1f} MB of the gateway per 1,000 kept runs"


def _judge(report: Report, soak: Soak, *, is_long: bool, warm_at: float) -> None:
    warm = [sample for sample in soak.samples if sample.at >= warm_at]
    for who in (*OURS, "nats"):
        grows = slope([(sample.at, sample.taken[who].rss_mb) for sample in warm])
        first, last = warm[0].taken[who], warm[-1].taken[who]
        began = soak.samples[0].taken[who]
        report.facts.append(
            f"{who} {began.rss_mb:.1f} → {first.rss_mb:.1f} → {last.rss_mb:.1f} MB "
            f"({str(grows) if is_long else 'too short for a slope'}), files {first.files} → {last.files}"
        )
        if is_long and who in OURS:
            report.must(f"{who}: memory stays flat ({grows})", holds=grows.per_hour < MAX_SLOPE_MB)
    consumers = {sample.consumers for sample in warm}
    report.facts.append(f"{min(consumers)} to {max(consumers)} consumers")
    report.must(f"consumers stay flat ({sorted(consumers)})", holds=max(consumers) - min(consumers) <= 2)
    for who in OURS:
        files = [sample.taken[who].files for sample in warm]
        half = len(files) // 2
        # Watches come and go: what counts is that the second half needs no more than the first.
        report.must(
            f"{who}: open files stay flat ({max(files[:half], default=0)} → {max(files[half:])})",
            holds=not is_long or max(files[half:]) <= max(files[:half]) + 10,
        )
