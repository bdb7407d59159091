"""Events under faults: one start for every key, however often and wherever it is posted."""

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx2

from audit import audit_records, execution_logs, patiently, receipts, stored_runs
from pyoco_server.domain.events.receipts import receipt_key
from replicas import told
from sites import CLIENT_PATIENCE_SEC, GaveUp, Site
from support.event_promises import Heard, agrees, started_by_key

LOOK_SEC = 0.5
QUIET_SEC = 3.0
"""Longer than a gateway waits before it tries to write its records again."""
ACTION = "chaos.tiny"
STEPS = {"one-step": 1, "three-steps": 3}
STILL_STARTING = 409


@dataclass(eq=False)
class Events:
    repeat_share: float = 0.5
    keys: dict[str, Heard] = field(default_factory=dict)
    event_ids: list[str] = field(default_factory=list)
    """Of every answer that was heard, whatever it said."""
    in_file_only: int = 0
    unrecorded: int = 0

    async def prepare(self, site: Site, chance: random.Random) -> None:
        await _put(site, chance, f"workflow-actions/{ACTION}", {"flow_name": "tiny"})
        for template_id, count in STEPS.items():
            kinds = ["external_event", *["after_previous"] * (count - 1)]
            steps = [{"id": f"s{n}", "action": ACTION, "trigger_kind": kind} for n, kind in enumerate(kinds)]
            await _put(
                site,
                chance,
                f"workflow-templates/{template_id}",
                {"name": template_id, "year": 2026, "month": 2, "steps": steps},
            )

    async def act(self, site: Site, chance: random.Random) -> None:
        key = f"k-{len(self.keys)}"
        template_id = chance.choice([*STEPS])
        self.keys[key] = Heard(template_id)
        posts = chance.randint(2, 4) if chance.random() < self.repeat_share else 1
        clients = [random.Random(chance.random()) for _ in range(posts)]  # noqa: S311
        await asyncio.gather(*(self._post(site, client, key, template_id) for client in clients))
        if chance.random() < self.repeat_share:
            await self._post(site, chance, key, template_id)

    async def _post(self, site: Site, chance: random.Random, key: str, template_id: str) -> None:
        """Until it is answered with what was started."""
        deadline = time.monotonic() + CLIENT_PATIENCE_SEC
        body = {"template_id": template_id, "idempotency_key": key, "source": "chaos"}
        while time.monotonic() < deadline:
            answer = await site.once("POST", "/api/workflow-events", chance, json=body)
            if answer is not None:
                self._hear(key, answer)
                if answer.status_code == 200:
                    return
                assert answer.status_code in (STILL_STARTING, 503), answer.text
            await asyncio.sleep(chance.uniform(0.05, 0.3))
        raise GaveUp(f"event {key}")

    def _hear(self, key: str, answer: httpx2.Response) -> None:
        said = answer.json()
        if "event_id" in said:
            self.event_ids.append(said["event_id"])
        if answer.status_code == 200:
            self.keys[key].run_ids.add(said["run_id"])
            if "execution_id" in said:
                self.keys[key].execution_ids.add(said["execution_id"])

    async def settled(self, site: Site, patience: float) -> float:
        """Records that waited for NATS are written when it is back, but for those of a killed gateway."""
        began = changed = time.monotonic()
        before: list[str] = []
        while True:
            known = await patiently(_recorded, site)
            now = time.monotonic()
            missing = [event_id for event_id in self.event_ids if not known[event_id]]
            if missing != before:
                before, changed = missing, now
            is_lost = _has_killed(site) and now - changed > QUIET_SEC and set(missing) <= set(_in_files(site))
            if not missing or is_lost or now - began > patience:
                return changed - began
            await asyncio.sleep(LOOK_SEC)

    async def broken(self, site: Site) -> list[str]:
        return [
            *await self._wrong_starts(site),
            *await self._wrong_receipts(site),
            *await self._wrong_records(site),
        ]

    async def _wrong_starts(self, site: Site) -> list[str]:
        """By key, everything that was started under it, however it was answered."""
        logs = await patiently(execution_logs, site)
        started = started_by_key(logs, await patiently(stored_runs, site))
        return [
            f"event {key}: answered {heard}, started {sorted(started[key])}{await _where(site, heard)}"
            for key, heard in self.keys.items()
            if len(heard.started) != 1 or heard.started != started[key] or len(heard.run_ids) != 1
        ]

    async def _wrong_receipts(self, site: Site) -> list[str]:
        stored = await patiently(receipts, site)
        return [
            f"event {key}: answered {heard}, its receipt is {receipt}"
            for key, heard in self.keys.items()
            if not agrees(receipt := stored.get(receipt_key(None, heard.template_id, key)), heard)
        ]

    async def _wrong_records(self, site: Site) -> list[str]:
        """One record per answer. A gateway that is killed takes those along that waited for NATS.

        They are in its file. Of a request whose gateway was killed between the start and the record there
        is no answer and no record; its repeat has both.
        """
        records = await patiently(audit_records, site)
        known, files = Counter(record.event_id for record in records), _in_files(site)
        has_killed = _has_killed(site)
        missing = [event_id for event_id in self.event_ids if not known[event_id]]
        excused = {event_id for event_id in missing if has_killed and files[event_id] == 1}
        self.in_file_only = len(excused)
        successes = {record.details.idempotency_key for record in records if record.status == "success"}
        self.unrecorded = len(self.keys.keys() - successes)
        wrong = [
            f"answer {event_id}: {known[event_id]} records"
            for event_id in self.event_ids
            if known[event_id] != 1 and event_id not in excused
        ]
        if self.unrecorded and not has_killed:
            wrong.append(f"{self.unrecorded} starts without a record of success")
        return wrong

    def summary(self) -> str:
        return (
            f"{len(self.keys)} events in {len(self.event_ids)} answered posts"
            f" ({self.unrecorded} starts and {self.in_file_only} records lost with a killed gateway)"
        )


def _has_killed(site: Site) -> bool:
    return any(gateway.kills for gateway in site.gateways)


async def _where(site: Site, heard: Heard) -> str:
    """What every node has of the executions that were answered: lost, or not seen?"""
    config = site.config
    subjects = [f"{config.executions_subject_prefix}.{one}" for one in sorted(heard.execution_ids)]
    return "".join([f"; {one}: {await told(site, config.executions_stream, one)}" for one in subjects])


async def _put(site: Site, chance: random.Random, path: str, body: dict[str, Any]) -> None:
    answer = await site.ask("PUT", f"/api/{path}", chance, json=body)
    assert answer.status_code == 200, answer.text


async def _recorded(site: Site) -> Counter[str]:
    return Counter(record.event_id for record in await audit_records(site))


def _in_files(site: Site) -> Counter[str]:
    """The event ids in the gateways' own files. A kill may leave half a line."""
    found: Counter[str] = Counter()
    for path in site.directory.glob("gateway-*.jsonl"):
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                found[json.loads(line)["event_id"]] += 1
    return found
