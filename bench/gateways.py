"""Gateways as processes of their own, on loopback, for as long as a measurement takes."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from processes import stop
from pyoco_server.config import NatsBackendConfig, env_name
from pyoco_server.processes import free_port
from pyoco_server.wiring import EmbeddedNats

HOST = "127.0.0.1"
START_SEC = 120.0


@dataclass(frozen=True)
class Gateway:
    port: int
    pid: int


@contextmanager
def nats_for_a_while() -> Iterator[EmbeddedNats]:
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedNats(Path(directory), durability="fast", port=free_port(HOST)) as nats,
    ):
        yield nats


@contextmanager
def gateway_process(config: NatsBackendConfig, *changed: str) -> Iterator[Gateway]:
    """A gateway that is ready. `changed` names the settings that are not as by default."""
    with tempfile.TemporaryDirectory() as directory, gateway_in(Path(directory), config, *changed) as gateway:
        yield gateway


@contextmanager
def gateway_in(
    directory: Path, config: NatsBackendConfig, *changed: str, patience_sec: float = START_SEC
) -> Iterator[Gateway]:
    """It keeps its index and its records of events in the directory."""
    port = free_port(HOST)
    settings = {env_name(name): str(getattr(config, name)) for name in ("nats_url", *changed)}
    command = [str(Path(sys.executable).with_name("pyoco-server")), "up", "--host", HOST, "--port", str(port)]
    process = subprocess.Popen(
        command,
        env={**os.environ, **settings, "PYOCO_LOG_LEVEL": "ERROR"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
    )
    try:
        wait_until_ready(port, patience_sec)
        yield Gateway(port, process.pid)
    finally:
        stop(process)


def wait_until_ready(port: int, patience_sec: float = START_SEC) -> None:
    deadline = time.monotonic() + patience_sec
    while time.monotonic() < deadline:
        try:
            if httpx2.get(f"http://{HOST}:{port}/ready").status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the gateway did not become ready")


def milliseconds(seconds: list[float], quantile: float = 0.5) -> float:
    if quantile == 0.5:
        return statistics.median(seconds) * 1000
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * quantile))] * 1000


def verdict(*, holds: bool) -> str:
    return "ok" if holds else "MISSED"
