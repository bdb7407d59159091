"""The stack on one machine: embedded NATS, the gateway in this process, a worker as a child process."""

import asyncio
import gc
import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.http_server import BoundedHead, Server, http_options, require_free
from pyoco_server.cli.output import BootstrapOptions, note
from pyoco_server.config import NATS_ACCESS, NatsBackendConfig, env_name
from pyoco_server.environment import secret_variable
from pyoco_server.errors import InvalidCliInput, NatsUnavailable
from pyoco_server.http_api import create_app
from pyoco_server.http_api.gateway import Gateway
from pyoco_server.logs import get_logger
from pyoco_server.processes import STOP_TIMEOUT_SEC, await_child, start_child
from pyoco_server.running_server import Durability
from pyoco_server.wiring import BootstrapNats, EmbeddedNats, without_credentials
from pyoco_server.wiring.gateway import Tuning

log = get_logger(__name__)

WATCH_INTERVAL_SEC = 0.5
MAX_RESTART_DELAY_SEC = 30.0
RESTART_PAUSE_SEC = 5.0
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


OwnNats = EmbeddedNats | BootstrapNats
"""A NATS started and stopped by this process."""


@contextmanager
def nats_for(
    config: NatsBackendConfig, *, external: bool, directory: Path, durability: Durability
) -> Iterator[tuple[NatsBackendConfig, OwnNats | None]]:
    """The settings with the NATS URL, and the NATS server if this process starts it."""
    if external:
        yield config, None
        return
    with EmbeddedNats(directory, durability=durability) as nats:
        yield config.with_own_nats(nats.url), nats


@dataclass
class Child:
    """A child process that is restarted when it ends."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    drain_sec: float
    """Its own drain timeout."""
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
                    "a child process has ended; restarting it",
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
        """Wait in a thread, so that `hurry` can be called meanwhile."""
        self._stopping = process
        process.terminate()
        if self._is_hurried:
            self.hurry()
        await asyncio.to_thread(await_child, process, self.drain_sec + STOP_TIMEOUT_SEC)

    def hurry(self) -> None:
        """Stop without draining. A different signal than the first, because equal signals may be merged."""
        self._is_hurried = True
        if self._stopping is not None:
            self._stopping.send_signal(signal.SIGINT)


def worker_child(
    config: NatsBackendConfig,
    flows: tuple[str, str],
    worker_id: str,
    output: IO[bytes] | None,
    drain_sec: float,
    *options: str,
) -> Child:
    """`flows` is the worker's flow option and its value."""
    command = [sys.executable, "-m", "pyoco_server.cli.worker", *flows, "--worker-id", worker_id]
    command += ["--drain-timeout", str(drain_sec), *options]
    env = {**os.environ, **_nats_environment(config)}
    return Child("worker", lambda: start_child(command, env=env, stdout=output), drain_sec)


def _nats_environment(config: NatsBackendConfig) -> dict[str, str]:
    """What a child needs to connect as this process does: everybody can read a command line.

    A password that came from a file stays there.
    """
    access = {name: getattr(config, name) for name in ("nats_url", *NATS_ACCESS)}
    settings = {env_name(name): str(value or "") for name, value in access.items()}
    password = env_name("nats_password")
    if config.nats_password and secret_variable(password) == config.nats_password:
        del settings[password]
    else:
        settings[f"{password}_FILE"] = ""
    return settings


async def _keep_nats(nats: OwnNats) -> None:
    while True:
        await asyncio.sleep(WATCH_INTERVAL_SEC)
        if not nats.is_running:
            log.error("the embedded NATS has ended; restarting it", action="stack.nats_restart")
            try:
                await asyncio.to_thread(nats.start)
            except NatsUnavailable:
                log.exception("the embedded NATS failed to start", action="stack.nats_failed")
                await asyncio.sleep(RESTART_PAUSE_SEC)


def for_this_machine(config: NatsBackendConfig, host: str) -> NatsBackendConfig:
    """A gateway without API keys on loopback accepts only loopback host names.

    Otherwise any web page could reach it from a local browser through a name that resolves to 127.0.0.1.
    """
    if config.http_auth_mode != "none" or config.allowed_hosts:
        return config
    names = loopback_names(host)
    return replace(config, allowed_hosts=",".join([*LOOPBACK, *names])) if names else config


def loopback_names(host: str) -> list[str]:
    """The host names for `host` in requests if it is a loopback address in any spelling, else none."""
    plain = host.strip("[]")
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(plain, None, proto=socket.IPPROTO_TCP)}
    except OSError:
        return []  # not a listen address
    if not all(_is_loopback(address) for address in found):
        return []
    return sorted({f"[{name}]" if ":" in name else name for name in (plain.lower(), *found)})


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@dataclass(frozen=True)
class Serving:
    """A gateway that accepts connections; without NATS it answers 503."""

    ended: asyncio.Future[None]
    """Done if it stops by itself."""
    is_open: asyncio.Event
    """Set once it has reached NATS."""

    async def opened(self, timeout_sec: float) -> None:
        """Raises NatsUnavailable if it takes longer."""
        opened = asyncio.ensure_future(self.is_open.wait())
        waited: set[asyncio.Future[Any]] = {opened, self.ended}
        await asyncio.wait(waited, timeout=timeout_sec, return_when=asyncio.FIRST_COMPLETED)
        opened.cancel()
        if not self.is_open.is_set():
            raise NatsUnavailable(f"nats unavailable: the gateway was not connected within {timeout_sec:g} s")


@asynccontextmanager
async def gateway(
    config: NatsBackendConfig,
    host: str,
    port: int,
    *,
    protocol: type[BoundedHead] = BoundedHead,
    tuning: Tuning | None = None,
) -> AsyncIterator[Serving]:
    """Serve HTTP until the block ends."""
    app = create_app(for_this_machine(config, host), tuning=tuning)
    server = Server(http_options(app, config, host=host, port=port, http=protocol))
    serving = asyncio.ensure_future(server.serve())
    try:
        while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        is_open = asyncio.Event()
        async with _supervised([_report_ready(app.state.gateway, is_open)] if server.started else []):
            yield Serving(serving, is_open)
    finally:
        if server.started:
            app.state.gateway.begin_stop()
        server.should_exit = True
        await serving


async def _report_ready(served: Gateway, is_open: asyncio.Event) -> None:
    """Log readiness only once the gateway is open, because clients connect immediately."""
    await served.opened()
    is_open.set()
    for one in served.imported:
        note(texts.EVENTS_IMPORTED(path=one.path, count=one.count, left_out=one.left_out))
    gc.collect()
    gc.freeze()  # long-lived objects; exclude them from garbage collection
    log.info("gateway ready", action="gateway.ready")


@asynccontextmanager
async def running_stack(
    config: NatsBackendConfig, nats: OwnNats | None, host: str, port: int, *workers: Child | None
) -> AsyncIterator[Serving]:
    """Gateway, workers and supervision of our NATS.

    On exit the gateway stops first, then the workers drain. The caller stops NATS, which both need.
    """
    keepers = [] if nats is None else [_keep_nats(nats)]
    keepers += [worker.supervise() for worker in workers if worker is not None]
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


async def stop_signal(serving: Serving, worker: Child | None) -> signal.Signals | None:
    """The first stop signal; None if the gateway stopped by itself. Later signals hurry the worker."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[signal.Signals] = loop.create_future()

    def ask(received: signal.Signals) -> None:
        if not asked.done():
            asked.set_result(received)
        elif worker is not None:
            worker.hurry()

    for wanted in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(wanted, ask, wanted)
    waited: set[asyncio.Future[Any]] = {asked, serving.ended}
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
    """Relative to the working directory where possible."""
    here = Path.cwd()
    return directory.relative_to(here) if directory.is_relative_to(here) else directory


# `up --with-nats-bootstrap`: start NATS with the external program nats-bootstrap.

PROGRAM = "nats-bootstrap"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_CLIENT_PORT = 4222
DEFAULT_HTTP_PORT = 8222
DEFAULT_START_TIMEOUT_SEC = 20.0


@contextmanager
def bootstrapped_nats(
    options: BootstrapOptions, config: NatsBackendConfig, directory: Path, *, url_is_given: bool
) -> Iterator[tuple[NatsBackendConfig, BootstrapNats]]:
    """The settings with the URL of the NATS, and the NATS. Raises InvalidCliInput or NatsUnavailable."""
    nats = _prepared(options, directory)
    if url_is_given and config.nats_url.removesuffix("/") != nats.url:
        given = without_credentials(config.nats_url)
        raise InvalidCliInput(texts.URL_IS_NOT_BOOTSTRAPS(url=nats.url, given=given))
    host = options.nats_listen_host or DEFAULT_HOST
    require_free(host, nats.port, "--nats-client-port")
    require_free(host, nats.http_port, "--nats-http-port")
    try:
        nats.start()
    except NatsUnavailable as error:
        detail = texts.BOOTSTRAP_NOT_STARTED(url=nats.url, reason=error.detail, log=nats.log)
        raise NatsUnavailable(detail) from error
    try:
        yield config.with_own_nats(nats.url), nats
    finally:
        nats.stop()


def _prepared(options: BootstrapOptions, directory: Path) -> BootstrapNats:
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=sysconfig.get_path("scripts"))
    if program is None:
        raise InvalidCliInput(texts.NO_NATS_BOOTSTRAP())
    return BootstrapNats(
        program,
        directory,
        host=options.nats_listen_host or DEFAULT_HOST,
        port=options.nats_client_port or DEFAULT_CLIENT_PORT,
        http_port=options.nats_http_port or DEFAULT_HTTP_PORT,
        timeout_sec=options.nats_start_timeout_sec or DEFAULT_START_TIMEOUT_SEC,
    )
