"""`make chaos`: every campaign once, from a seed, with a report on the screen and in docs/chaos.md."""

import argparse
import asyncio
import sys
import time
from dataclasses import replace

from campaigns import CAMPAIGNS, FULL, LONG, SHORT, Report
from pages import remember, result_of
from reports import Scale


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", action="append", choices=list(CAMPAIGNS))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--short", action="store_true")
    size.add_argument(
        "--full",
        action="store_true",
        help="10,000 runs, 1,000 executions and 1,000 events per campaign, at least 100 faults",
    )
    parser.add_argument("--acts", type=int, help="runs per campaign, and a tenth of it each of the others")
    parser.add_argument("--soak-sec", type=float)
    parser.add_argument(
        "--write",
        action="store_true",
        help="keep the results, and write docs/chaos.md from all that are kept",
    )
    chosen = parser.parse_args()
    scale, is_broken = _scale(chosen), False
    for name in chosen.only or CAMPAIGNS:
        began = time.monotonic()
        report = asyncio.run(CAMPAIGNS[name](chosen.seed, scale))
        report.seconds = time.monotonic() - began
        _show(name, report)
        is_broken = is_broken or bool(report.broken)
        if chosen.write:
            remember({name: result_of(name, report, chosen.seed, scale)}, list(CAMPAIGNS))
    if is_broken:
        print(f"seed {chosen.seed}")
    return int(is_broken)


def _scale(chosen: argparse.Namespace) -> Scale:
    scale = SHORT if chosen.short else FULL if chosen.full else LONG
    if chosen.acts:
        tenth = max(1, chosen.acts // 10)
        scale = replace(scale, acts=chosen.acts, executions=tenth, events=tenth)
    return replace(scale, soak_sec=chosen.soak_sec or scale.soak_sec)


def _show(name: str, report: Report) -> None:
    verdict = f"{len(report.broken)} BROKEN" if report.broken else "left out" if report.left_out else "held"
    told = report.left_out or "; ".join(report.facts)
    print(f"{name:<11} {report.fault:<9} {verdict:<10} {report.seconds:5.0f} s  {told}", flush=True)
    for problem in report.broken[:20]:
        print(f"    BROKEN {problem}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
