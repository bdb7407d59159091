"""The last result of every campaign, and docs/chaos.md made from them.

Campaigns take from seconds to an hour and are not all run at once: each has its own seed, size and day.
"""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from reports import Report, Scale

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "chaos" / "results.json"
PAGE = ROOT / "docs" / "chaos.md"
HEAD = """\
# Chaos: what was done to it, and what held

Real processes, a real nats-server, real kills; the clients repeat what was not answered. `make chaos` runs
all of this by hand (`make chaos CHAOS="--seed 7 --only workers"` for one of them), and `make test` a small
part of it; `CHAOS="--full --only everything"` is the figure of 10,000 runs, 1,000 executions and 1,000 events
under at least 100 faults. The campaigns of F3 to F7, F9 and F13 carry out runs, executions and events
together. Every line below has the seed and the size of its own last run.

A campaign passes when

- every acknowledged run is there and has ended once, every cancel that was answered CANCELLING has won, no
  write was accepted after an end (a mirror of the runs' bucket keeps all of them), and neither a job nor an
  unfinished run is left;
- every acknowledged execution has ended: CANCELED if a cancel of it was accepted, else with the word of the
  person it waited for; its log has no gaps and its cached state is a fold of it; every attempt of a node was
  begun once, every run is the run of such an attempt, and what succeeded did so by its run;
- every key of an event has started exactly one run or execution, which all answers and its receipt name, and
  every answer has exactly one audit record.

The exception to the last: a gateway that is killed takes the records along that waited for NATS (they are in
its file), and of a request that it had not answered there may be a start and no record; the repeat has one.

"""
TAIL = """
## What the campaigns are

- *Killed* is SIGKILL, *frozen* is SIGSTOP for half a second to five seconds, *cut off* is a network that
  silently carries nothing for one to twenty seconds. One member is hurt at a time, and is whole again before
  the next is.
- After the last fault the checker waits until all NATS nodes name the same leader of every stream: one that
  was cut off answers for a moment as the leader that it was, with what was stored before.
- AckWait is 3 s and the grace period of a cancel 1 s, so that a campaign sees many of each.
- The network of F6 (cut off) and F9 is made of network namespaces on one machine; a process between two tun
  devices delays and loses packets. Without root, iproute2 or `/dev/net/tun` they are skipped
  and reported as skipped.
- The wrong clocks of F9 are the time of day that Python has (`time.time`) in two workers, one 5 minutes fast
  and one 5 minutes slow, and in one of two gateways, 5 minutes fast.
- F15 keeps runs for five minutes (`PYOCO_RUNS_RETENTION_SEC`), so that the number of runs is
  constant after that. A gateway's memory grows with the runs that are **kept**, by the figure per 1,000
  in the line, if its index is in memory, because it has a row for each. This is no leak, and
  `PYOCO_RUNS_RETENTION_SEC` bounds it; `pyoco-server up` puts the index into a file. The slope is the
  straight line through what was measured every 30 s after the first third of the time. nats-server's memory
  is shown and not judged.

## What was not tried

- Ten thousand runs under each fault alone: only `everything` is that large. The other lines state their
  size. The soak never had a machine without other work for its whole hour.
- Power failures: a killed process loses nothing that the kernel has, a machine without power does. Nor disks
  that lie, or files that are damaged.
- More than one machine, other systems than Linux, other file systems.
- Two faults at once, partitions that let packets through in one direction, packets that arrive twice or in
  another order (the simulation does that to messages), and clocks that jump while a process runs (the
  simulation does that too).
- Clocks of nats-servers that differ from each other.
- F1 and F2 are no campaigns: the core's properties and the seeded simulation are in `tests/simulation`. F16
  (1,000 equal events at once) is in `tests/integration/test_events.py`.
"""


@dataclass(frozen=True)
class Result:
    """A report, and what it was a report of."""

    fault: str
    title: str
    facts: list[str]
    broken: list[str]
    left_out: str
    seconds: float
    seed: int
    size: str
    day: str
    machine: str

    @property
    def verdict(self) -> str:
        if self.left_out:
            return f"left out: {self.left_out}"
        return "held" if not self.broken else "**broken**: " + "; ".join(self.broken[:3])


def result_of(name: str, report: Report, seed: int, scale: Scale) -> Result:
    return Result(
        **asdict(report),
        seed=seed,
        size=size_of(name, scale),
        day=time.strftime("%Y-%m-%d"),
        machine=f"{os.cpu_count()} CPUs, {platform.system()}, Python {platform.python_version()}",
    )


def size_of(name: str, scale: Scale) -> str:
    if name == "soak":
        return f"{scale.soak_sec:g} s"
    return f"{scale.acts:,} runs, {scale.executions:,} executions, {scale.events:,} events asked for"


def remembered() -> dict[str, Result]:
    if not RESULTS.exists():
        return {}
    stored: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    known = {field.name for field in fields(Result)}
    return {name: Result(**{k: v for k, v in one.items() if k in known}) for name, one in stored.items()}


def remember(results: dict[str, Result], order: list[str]) -> None:
    """Beside the results of earlier times, and on the page with them."""
    merged = {**remembered(), **results}
    merged = {name: merged[name] for name in order if name in merged}
    stored = {name: asdict(one) for name, one in merged.items()}
    RESULTS.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(merged, order))


def page(results: dict[str, Result], order: list[str]) -> str:
    lines = ["| fault | what was done | what happened | result | when |", "|---|---|---|---|---|"]
    lines += [_row(name, one) for name, one in results.items()]
    machines = sorted({one.machine for one in results.values()})
    never = [name for name in order if name not in results]
    told = f"Machine: {'; '.join(machines)}, busy with other work at the same time.\n\n"
    missing = f"\nNever run so far: {', '.join(never)}.\n" if never else ""
    return HEAD + told + "\n".join(lines) + "\n" + missing + TAIL


def _row(name: str, one: Result) -> str:
    done = f"{one.title} (`{name}`, {one.seconds:.0f} s)"
    when = f"{one.day}, seed {one.seed}; {one.size}"
    return f"| {one.fault} | {done} | {'; '.join(one.facts)} | {one.verdict} | {when} |"
