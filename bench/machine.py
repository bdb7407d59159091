"""On what it was measured."""

import datetime as dt
import os
import platform
import subprocess
from pathlib import Path

from page import table
from pyoco_server.jetstream.nats_server import find_binary


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def nats_version() -> str:
    binary = find_binary()
    assert binary is not None, "there is no nats-server"
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip().removeprefix("nats-server: ")


def load() -> str:
    return " ".join(f"{average:.1f}" for average in os.getloadavg())


def facts(load_before: str, how: str) -> list[str]:
    now = dt.datetime.now(dt.UTC)
    rows = [
        ("date", f"{now:%Y-%m-%d %H:%M} UTC"),
        ("CPU", f"{cpu_model()}, {os.cpu_count()} cores"),
        ("memory", f"{memory_gb():.0f} GB"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("Python", platform.python_version()),
        ("nats-server", nats_version()),
        ("load over 1, 5, 15 minutes, before", load_before),
        ("and after, which is mostly the benchmark itself", load()),
        ("sizes", how),
    ]
    return table(("machine", ""), rows)
