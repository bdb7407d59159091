"""All the benchmarks, one after the other, and docs/benchmarks.md from what they found (`--write`)."""

import argparse
import sys
import time
import traceback
from collections.abc import Callable

import auth
import events
import executions
import fleet
import growth
import idle_workers
import lists
import peers
import read_model
import run_cost
import schedules
import submit_rate
import watchers
import wheel_memory
from machine import facts, load
from page import Figures, Goal, goals_table, show, write
from processes import unwind_on_sigterm

Benchmarks = dict[str, Callable[[], Figures]]

WHOLE: Benchmarks = {
    "peers": lambda: peers.measure(runs=3200, rounds=3, idle=60),
    "run-cost": lambda: run_cost.measure(runs=1500, rounds=3),
    "submit-rate": lambda: submit_rate.measure(runs=6000),
    "lists": lambda: lists.measure(times=40),
    "read-model": lambda: read_model.measure(runs=1_000_000, times=40, executions=200_000),
    "watchers": lambda: watchers.measure(writes=300),
    "idle-workers": lambda: idle_workers.measure(seconds=15),
    "fleet": lambda: fleet.measure(workers=1000, gateways=2, seconds=30, runs=5000),
    "growth": lambda: growth.measure(runs=2000),
    "executions": lambda: executions.measure(executions=300, waits=5000, rest=5),
    "events": lambda: events.measure(events=3000, records=50_000),
    "schedules": lambda: schedules.measure(schedules.usual(seconds=30)),
    "auth": lambda: auth.measure(times=100),
    "wheels": lambda: wheel_memory.measure(megabytes=200),
}
QUICK: Benchmarks = {
    "peers": lambda: peers.measure(480, 1, 20, list_runs=2000, only=peers.QUICK, most_hangs=2),
    "run-cost": lambda: run_cost.measure(runs=500, rounds=1),
    "submit-rate": lambda: submit_rate.measure(runs=1600),
    "lists": lambda: lists.measure(times=10, sizes=(1000, 10_000)),
    "read-model": lambda: read_model.measure(runs=20_000, times=10, executions=20_000),
    "watchers": lambda: watchers.measure(writes=100, crowds=(50, 200)),
    "idle-workers": lambda: idle_workers.measure(seconds=5, many=(1, 5)),
    "fleet": lambda: fleet.measure(workers=100, gateways=1, seconds=10, runs=500),
    "growth": lambda: growth.measure(runs=400),
    "executions": lambda: executions.measure(executions=50, waits=500, rest=2, times=20),
    "events": lambda: events.measure(events=600, records=5000),
    "schedules": lambda: schedules.measure([schedules.Load(100, 1.0, 5.0)]),
    "auth": lambda: auth.measure(times=30),
    "wheels": lambda: wheel_memory.measure(megabytes=50),
}


def run(benchmarks: Benchmarks) -> tuple[dict[str, list[str]], list[Goal], bool]:
    """What each found. One that fails says so on the page, and the others go on."""
    sections: dict[str, list[str]] = {}
    goals: list[Goal] = []
    well = True
    for name, measure in benchmarks.items():
        print(f"== {name}", flush=True)
        began = time.monotonic()
        try:
            figures = measure()
        except Exception as why:  # noqa: BLE001 - whatever it was
            traceback.print_exc()
            figures = Figures([f"Could not be measured: {type(why).__name__}."], [])
            well = False
        show(figures)
        print(f"({time.monotonic() - began:.0f} s)\n", flush=True)
        sections[name] = figures.lines
        goals += figures.goals
    return sections, goals, well


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and one round: a first look")
    parser.add_argument("--only", action="append", choices=list(WHOLE), help="may be given several times")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    chosen = parser.parse_args()
    unwind_on_sigterm()
    benchmarks = QUICK if chosen.quick else WHOLE
    wanted = {name: benchmarks[name] for name in benchmarks if not chosen.only or name in chosen.only}
    before, began = load(), time.monotonic()
    sections, goals, well = run(wanted)
    minutes = (time.monotonic() - began) / 60
    how = "`--quick`: small, one round; a first look only" if chosen.quick else "as by default"
    sections["machine"] = facts(before, f"{how}; {minutes:.0f} minutes in all")
    if goals:
        sections["goals"] = goals_table(goals)
        missed = sum(not goal.reached for goal in goals)
        sections["goals"] += ["", f"{len(goals) - missed} of {len(goals)} reached."]
    print("\n".join([*sections["machine"], "", *sections.get("goals", [])]))
    if chosen.write:
        write(sections)
    sys.exit(not well)


if __name__ == "__main__":
    main()
