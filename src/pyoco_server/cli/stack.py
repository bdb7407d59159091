"""Everything on one machine: the embedded NATS, the gateway in this process, a worker beside it."""

import asyncio
import gc
import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import uvicorn

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.http_protocol import BoundedHead
from pyoco_server.cli.terminal import say
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import NatsUnavailable
from pyoco_server.http_api import create_app
from pyoco_server.http_api.gateway import Gateway
from pyoco_server.logs import get_logger
from pyoco_server.processes import STOP_PATIENCE_SEC, await_child, start_child
from pyoco_server.wiring import BootstrapNats, Durability, EmbeddedNats, without_credentials
from pyoco_server.wiring.gateway import Tuning

log = get_logger(__name__)

WATCH_INTERVAL_SEC = 0.5
MAX_RESTART_DELAY_SEC = 30.0
RESTART_PAUSE_SEC = 5.0
DRAIN_SEC = 5
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


OwnNats = EmbeddedNats | BootstrapNats
"""A NATS that we started, and stop."""


@contextmanager
def nats_for(
    config: NatsBackendConfig, *, external: bool, directory: Path, durability: Durability
) -> Iterator[tuple[NatsBackendConfig, OwnNats | None]]:
    """The settings with a url to use, and the server behind it if it is ours."""
    if external:
        yield config, None
        return
    with EmbeddedNats(directory, durability=durability) as nats:
        yield replace(config, nats_url=nats.url), nats


@dataclass
class Child:
    """A process that is started again when it ends: a fleet of one must survive its night alone."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    drain_sec: float
    """How long it takes by itself to stop, at the most."""
    _stopping: subprocess.Popen[bytes] | None = None
    _is_hurried: bool = False

    async def supervise(self) -> None:
        delay = 1.0
        process = self.start()
        try:
            while True:
                await asyncio.sleep(WATCH_INTERVAL_SEC)
                if process.poll() is None:
                    continue
                log.error(
                    "a process of ours has ended; starting it again",
                    action="stack.restart",
                    process=self.name,
                    exit_code=process.returncode,
                    delay_sec=delay,
                )
                await asyncio.sleep(delay)
                delay = min(delay * 2, MAX_RESTART_DELAY_SEC)
                process = self.start()
        finally:
            await self._stop(process)

    async def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread: meanwhile we may be asked to hurry."""
        self._stopping = process
        process.terminate()
        if self._is_hurried:
            self.hurry()
        await asyncio.to_thread(await_child, process, self.drain_sec + STOP_PATIENCE_SEC)

    def hurry(self) -> None:
        """It is not to wait for its runs. Another signal than the first: two equal ones may arrive as one."""
        self._is_hurried = True
        if self._stopping is not None:
            self._stopping.send_signal(signal.SIGINT)


def worker_child(
    config: NatsBackendConfig,
    flows: tuple[str, str],
    worker_id: str,
    output: IO[bytes] | None,
    drain_sec: float,
) -> Child:
    """`flows` is the option that says where they come from, with its value."""
    command = [sys.executable, "-m", "pyoco_server.cli.worker", *flows, "--worker-id", worker_id]
    command += ["--drain-timeout", str(drain_sec)]
    env = {**os.environ, "PYOCO_NATS_URL": config.nats_url}
    return Child("worker", lambda: start_child(command, env=env, stdout=output), drain_sec)


async def _keep_nats(nats: OwnNats) -> None:
    while True:
        await asyncio.sleep(WATCH_INTERVAL_SEC)
        if not nats.is_running:
            log.error("our NATS has ended; starting it again", action="stack.nats_restart")
            try:
                await asyncio.to_thread(nats.start)
            except NatsUnavailable:
                log.exception("our NATS does not start", action="stack.nats_failed")
                await asyncio.sleep(RESTART_PAUSE_SEC)


def for_this_machine(config: NatsBackendConfig, host: str) -> NatsBackendConfig:
    """A gateway without keys that listens on loopback answers to loopback's names only.

    Else any web page could reach it from this machine's browser, under a name that points to 127.0.0.1.
    """
    if config.http_auth_mode != "none" or config.allowed_hosts:
        return config
    names = loopback_names(host)
    return replace(config, allowed_hosts=",".join([*LOOPBACK, *names])) if names else config


def loopback_names(host: str) -> list[str]:
    """How requests may name the address that `host` is, if that is loopback, however it is spelled."""
    plain = host.strip("[]")
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(plain, None, proto=socket.IPPROTO_TCP)}
    except OSError:
        return []  # nothing can listen there
    if not all(_is_loopback(address) for address in found):
        return []
    return sorted({f"[{name}]" if ":" in name else name for name in (plain.lower(), *found)})


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: the worker and NATS have to be stopped in order, too."""
        yield


@asynccontextmanager
async def gateway(
    config: NatsBackendConfig,
    host: str,
    port: int,
    *,
    protocol: type[BoundedHead] = BoundedHead,
    tuning: Tuning | None = None,
) -> AsyncIterator[asyncio.Future[None]]:
    """The HTTP gateway, taking requests until the block ends; the future is done if it ends by itself."""
    app = create_app(for_this_machine(config, host), tuning=tuning)
    server = _Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            http=protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(config.trusted_proxies),
            forwarded_allow_ips=config.trusted_proxies or None,
            timeout_graceful_shutdown=DRAIN_SEC,
        )
    )
    serving = asyncio.ensure_future(server.serve())
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        async with _supervised([_say_ready(app.state.gateway)] if server.started else []):
            yield serving
    finally:
        if server.started:
            app.state.gateway.begin_stop()
        server.should_exit = True
        await serving


async def _say_ready(served: Gateway) -> None:
    """Only now: whoever reads it connects at once."""
    await served.opened()
    for one in served.imported:
        say(texts.EVENTS_IMPORTED(path=one.path, count=one.count, left_out=one.left_out))
    gc.collect()
    gc.freeze()  # what is there now stays: collections of garbage need not look through it
    log.info("gateway ready", action="gateway.ready")


@asynccontextmanager
async def running_stack(
    config: NatsBackendConfig, nats: OwnNats | None, host: str, port: int, worker: Child | None
) -> AsyncIterator[asyncio.Future[None]]:
    """Gateway, worker and the watch over our own NATS.

    First no new requests are taken, then the worker finishes; NATS, which both need, belongs to the caller.
    """
    keepers = [] if nats is None else [_keep_nats(nats)]
    if worker is not None:
        keepers.append(worker.supervise())
    async with _supervised(keepers), gateway(config, host, port) as serving:
        yield serving


@asynccontextmanager
async def _supervised(keepers: list[Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(keeper) for keeper in keepers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def stop_signal(serving: asyncio.Future[None], worker: Child | None) -> signal.Signals | None:
    """Which signal asked us to stop; None when the gateway ended by itself. Later ones hurry the worker."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def ask(received: signal.Signals) -> None:
        if not asked.done():
            asked.set_result(received)
        elif worker is not None:
            worker.hurry()

    for wanted in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(wanted, ask, wanted)
    waited: set[asyncio.Future[Any]] = {asked, serving}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    return asked.result() if asked.done() else None


def describe_nats(config: NatsBackendConfig, nats: OwnNats | None) -> str:
    match nats:
        case None:
            return texts.NATS_YOURS(url=without_credentials(config.nats_url))
        case BootstrapNats():
            return texts.NATS_BOOTSTRAPPED(
                url=nats.url, http_port=nats.http_port, directory=_shown(nats.directory)
            )
        case _:
            return texts.NATS_EMBEDDED(
                url=nats.url, directory=_shown(nats.directory), durability=nats.durability
            )


def _shown(directory: Path) -> Path:
    """As somebody in the working directory would call it."""
    here = Path.cwd()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory
