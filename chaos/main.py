"""`make chaos`: every campaign once, from a seed, with a report on the screen and in docs/chaos.md."""

import argparse
import asyncio
import os
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

from campaigns import CAMPAIGNS, FULL, LONG, SHORT, Report

PAGE = Path(__file__).parents[1] / "docs" / "chaos.md"
HEAD = """\
# Chaos: what was done to it, and what held

Real processes, a real nats-server, real kills; the clients repeat what was not answered. `make chaos` runs
this by hand (`make chaos CHAOS="--seed 7 --only workers"` for one of them), and `make test` a small version
of it; `CHAOS="--full --only everything"` is the figure of 10,000 runs, 1,000 executions and 1,000 events
under 100 faults and more. The campaigns of F3 to F7 and F13 carry out runs, executions and events together.

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", action="append", choices=list(CAMPAIGNS))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true")
    size.add_argument(
        "--full", action="store_true", help="10,000 runs, 1,000 executions and 1,000 events per campaign"
    )
    parser.add_argument("--acts", type=int, help="runs per campaign, and a tenth of it each of the others")
    parser.add_argument("--soak-sec", type=float)
    parser.add_argument("--write", action="store_true", help="write docs/chaos.md")
    chosen = parser.parse_args()
    scale = SHORT if chosen.short else FULL if chosen.full else LONG
    if chosen.acts:
        tenth = max(1, chosen.acts // 10)
        scale = replace(scale, acts=chosen.acts, executions=tenth, events=tenth)
    scale = replace(scale, soak_sec=chosen.soak_sec or scale.soak_sec)
    reports = []
    for name in chosen.only or CAMPAIGNS:
        began = time.monotonic()
        report = asyncio.run(CAMPAIGNS[name](chosen.seed, scale))
        report.seconds = time.monotonic() - began
        reports.append(report)
        print(_line(name, report), flush=True)
        for problem in report.broken[:20]:
            print(f"    BROKEN {problem}", flush=True)
    if chosen.write:
        PAGE.write_text(HEAD + _page(reports, chosen.seed))
    if any(report.broken for report in reports):
        print(f"seed {chosen.seed}")
        return 1
    return 0


def _line(name: str, report: Report) -> str:
    verdict = "held" if not report.broken else f"{len(report.broken)} BROKEN"
    return f"{name:<11} {report.fault:<9} {verdict:<10} {report.seconds:5.0f} s  " + "; ".join(report.facts)


def _page(reports: list[Report], seed: int) -> str:
    machine = f"{os.cpu_count()} CPUs, Linux, Python {platform.python_version()}"
    lines = [f"Last run: seed {seed}, {machine}, other load on the machine.\n"]
    lines += ["| fault | what was done | what happened | result |", "|---|---|---|---|"]
    for report in reports:
        result = "held" if not report.broken else "**broken**: " + "; ".join(report.broken[:3])
        done = f"{report.title} ({report.seconds:.0f} s)"
        lines.append(f"| {report.fault} | {done} | {'; '.join(report.facts)} | {result} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
