"""`pyoco-worker`: take jobs by tag and run their flows."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cyclopts
from msgspec import Struct

from pyoco_server import otel
from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.failures import FAILED, INTERRUPTED, reporting_failures, run_app
from pyoco_server.cli.output import NO_NATS_OPTIONS, Flag, NatsOptions, note
from pyoco_server.cli.terminal import add_completion, serve
from pyoco_server.config import NatsBackendConfig, is_set
from pyoco_server.errors import IncompatibleNats, InvalidCliInput, NatsUnavailable
from pyoco_server.logs import configure_logging, get_logger
from pyoco_server.running_server import running_server, settings_here
from pyoco_server.usecases.ports.runs import WorkerBackend
from pyoco_server.wiring import check_nats_access
from pyoco_server.wiring.worker import (
    Limits,
    WorkerName,
    new_worker,
    open_flow_processes,
    open_worker_connection,
    own_usage,
)
from pyoco_server.worker.worker import SideWorkEnded, Worker, WorkerIdInUse, check_names

if TYPE_CHECKING:
    from pyoco_server.cli.worker_http import WorkerProbe

log = get_logger(__name__)
app = cyclopts.App(name="pyoco-worker", help="Run flows submitted to a pyoco-server.")

CONNECT_RETRY_SEC = 1.0
MAX_CONNECT_RETRY_SEC = 15.0


class Options(Struct, frozen=True, kw_only=True):
    worker_id: str
    tags: tuple[str, ...]
    flow_resolver: str
    concurrency: int
    limits: Limits
    drain_timeout: float
    poll_timeout: float
    run_once: bool


@app.default
def worker(  # noqa: PLR0913 - the options of the contract
    *,
    flow_resolver: str | None = None,
    flows: str | None = None,
    nats_url: str | None = None,
    access: NatsOptions = NO_NATS_OPTIONS,
    tags: str | None = None,
    worker_id: str | None = None,
    concurrency: int | None = None,
    max_runs_per_process: int = 0,
    max_memory_mb: int = 0,
    drain_timeout: float = 60.0,
    wheel_sync: bool | None = None,
    wheel_sync_dir: str | None = None,
    wheel_sync_interval_sec: float | None = None,
    wheel_install_timeout_sec: float | None = None,
    http_port: int | None = None,
    http_host: str | None = None,
    poll_timeout: float = 1.0,
    run_once: Flag = False,
) -> None:
    """Start a worker.

    Parameters
    ----------
    flow_resolver
        Source of flows: a function that returns a flow by name (module:function or path/file.py:function), or
        a module of flows (my_package.flows or path/flows.py).
    flows
        Instead of --flow-resolver: a directory of flow files (*.py), reloaded on change.
    nats_url
        NATS URL of the server (also: PYOCO_NATS_URL). Default: the server started in this directory, else
        nats://127.0.0.1:4222
    tags
        Take jobs with these tags, e.g. cpu,linux. Default: PYOCO_DEFAULT_TAG.
    worker_id
        Unique worker id. Default: the host name.
    concurrency
        Number of concurrent flows, each in its own process. Default: the number of CPUs.
    max_runs_per_process
        Replace a process after this many runs; 0: never.
    max_memory_mb
        Replace a process that exceeds this size after a run; 0: never.
    drain_timeout
        After SIGTERM or Ctrl-C: seconds to wait for running flows before they are returned to the queue. A
        second Ctrl-C returns them immediately.
    wheel_sync
        Install the wheels registered for these tags (also: PYOCO_WHEEL_SYNC_ENABLED).
    wheel_sync_dir
        Install directory for wheels (also: PYOCO_WHEEL_SYNC_DIR).
    wheel_sync_interval_sec
        Seconds between two wheel syncs (also: PYOCO_WHEEL_SYNC_INTERVAL_SEC).
    wheel_install_timeout_sec
        Timeout in seconds for installing one wheel (also: PYOCO_WHEEL_INSTALL_TIMEOUT_SEC).
    http_port
        Port for /health, /ready and /metrics (also: PYOCO_WORKER_HTTP_PORT). Default: none.
    http_host
        Listen address for them (also: PYOCO_WORKER_HTTP_HOST). Default: 127.0.0.1
    poll_timeout
        With --run-once: seconds to wait for a job.
    run_once
        Handle at most one job and stop.
    """
    with reporting_failures():
        config = settings_here(
            nats_url=nats_url,
            wheel_sync_enabled=wheel_sync,
            wheel_sync_dir=wheel_sync_dir,
            wheel_sync_interval_sec=wheel_sync_interval_sec,
            wheel_install_timeout_sec=wheel_install_timeout_sec,
            worker_http_port=http_port,
            worker_http_host=http_host,
            **vars(access),
        )
        check_nats_access(config)
        os.environ.pop("PYOCO_SECRETS_KEY", None)  # a flow may print its environment
        configure_logging(
            service="pyoco-server:worker",
            level=config.log_level,
        )
        options = Options(
            worker_id=worker_id or socket.gethostname(),
            tags=tuple(tag.strip() for tag in (tags or config.default_tag).split(",") if tag.strip()),
            flow_resolver=_flow_source(flow_resolver, flows),
            concurrency=_concurrency(concurrency, run_once=run_once),
            limits=Limits(
                max_runs=max_runs_per_process,
                max_rss_bytes=max_memory_mb * 1024 * 1024,
                grace_sec=config.cancel_grace_period_sec,
            ),
            drain_timeout=drain_timeout,
            poll_timeout=poll_timeout,
            run_once=run_once,
        )
        _check(options)
        is_url_given = nats_url is not None or is_set("nats_url")
        otel.start("pyoco-worker")
        try:
            code = serve(_work(config, options, find_server=not is_url_given))
        finally:
            otel.stop()
        sys.exit(code)


def _flow_source(flow_resolver: str | None, flows: str | None) -> str:
    if (flow_resolver is None) == (flows is None):
        raise InvalidCliInput(texts.FLOWS_NEEDED())
    if flows is not None and not Path(flows).is_dir():
        raise InvalidCliInput(texts.FLOWS_NOT_A_DIRECTORY(path=flows))
    return flow_resolver or flows or ""


def _concurrency(asked: int | None, *, run_once: bool) -> int:
    if run_once:
        return 1
    return (os.cpu_count() or 1) if asked is None else asked


def _check(options: Options) -> None:
    if options.concurrency < 1:
        raise InvalidCliInput(texts.BAD_CONCURRENCY(given=options.concurrency))
    try:
        check_names(options.worker_id, options.tags)
    except ValueError as error:
        raise InvalidCliInput(texts.BAD_WORKER_NAMES(reason=error)) from error


async def _work(config: NatsBackendConfig, options: Options, *, find_server: bool) -> int:
    name = WorkerName(options.worker_id, options.tags)
    async with AsyncExitStack() as stack:
        # Before connecting to NATS, so that flows that cannot be loaded are reported immediately.
        flows = await stack.enter_async_context(
            open_flow_processes(config, name, options.flow_resolver, options.concurrency, options.limits)
        )
        probe = await _endpoint(stack, config)
        backend, config = await _connected(stack, config, name, find_server=find_server)
        given: dict[str, Any] = {"usage": own_usage, "values_dir": flows.values_dir}
        instance = new_worker(config, backend, flows.executors, name, flows.wheels, **given)
        if probe is not None:
            probe.worker = instance
        opening = asyncio.ensure_future(_opened(instance))
        stopping = Stopping(instance, options.drain_timeout, opening)
        stopping.listen()
        try:
            await opening
        except WorkerIdInUse as error:
            raise InvalidCliInput(texts.WORKER_ID_IN_USE(reason=error)) from error
        except asyncio.CancelledError:
            return stopping.exit_code
        try:
            await _serve(instance, options, stopping)
        except SideWorkEnded:
            log.exception("a background task failed; the worker stops", action="worker.failed")
            return FAILED
        finally:
            await instance.close()
    return stopping.exit_code


async def _endpoint(stack: AsyncExitStack, config: NatsBackendConfig) -> "WorkerProbe | None":
    """Imported only where it is wanted: a worker starts faster without an HTTP server."""
    if not config.worker_http_port:
        return None
    from pyoco_server.cli.worker_http import WorkerProbe, worker_endpoint  # noqa: PLC0415

    probe = WorkerProbe()
    await stack.enter_async_context(worker_endpoint(config, probe))
    return probe


async def _serve(instance: Worker, options: Options, stopping: "Stopping") -> None:
    if options.run_once:
        await instance.handle_one(options.poll_timeout)
        return
    await instance.run()
    left = await stopping.drained()
    if left:
        log.warning(
            "drain timed out; unfinished runs are returned to the queue", action="worker.gave_back", runs=left
        )


class Stopping:
    """The first signal drains running flows, the second returns them to the queue, the third exits."""

    def __init__(self, instance: Worker, drain_timeout: float, opening: "asyncio.Future[None]") -> None:
        self._instance = instance
        self._opening = opening
        self._drain_timeout = drain_timeout
        self._draining: asyncio.Task[int] | None = None
        self._received: list[signal.Signals] = []

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if signal.SIGINT in self._received else 0

    def listen(self) -> None:
        loop = asyncio.get_running_loop()
        for wanted in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(wanted, self._stop, wanted)

    async def drained(self) -> int:
        """Wait for running flows; the number of unfinished runs."""
        self._draining = asyncio.ensure_future(self._instance.drain(self._drain_timeout))
        if len(self._received) > 1:
            self._draining.cancel()
        await asyncio.wait({self._draining})
        return self._instance.in_hand if self._draining.cancelled() else self._draining.result()

    def _stop(self, by: signal.Signals) -> None:
        self._received.append(by)
        match len(self._received):
            case 1 if not self._opening.done():
                self._opening.cancel()
            case 1:
                self._instance.stop()
                self._note_draining()
            case 2:
                note(texts.GIVING_BACK())
                if self._draining is not None:
                    self._draining.cancel()
            case _:
                os._exit(INTERRUPTED)

    def _note_draining(self) -> None:
        runs = self._instance.in_hand
        if runs:
            note(texts.DRAINING(runs=runs, seconds=f"{self._drain_timeout:g}"))


async def _opened(instance: Worker) -> None:
    """Open the worker, with retries: NATS may become unavailable during startup and reconnects by itself."""
    while True:
        try:
            await instance.open()
        except IncompatibleNats:
            raise
        except NatsUnavailable as error:
            _log_waiting("lost the connection to NATS; retrying", error, CONNECT_RETRY_SEC)
            await asyncio.sleep(CONNECT_RETRY_SEC)
        else:
            return


async def _connected(
    stack: AsyncExitStack, config: NatsBackendConfig, name: WorkerName, *, find_server: bool
) -> tuple[WorkerBackend, NatsBackendConfig]:
    """Connect with retries: workers and servers may be started in any order."""
    pause = CONNECT_RETRY_SEC
    while True:
        if find_server:
            config = _of_running_server(config)
        try:
            backend = await stack.enter_async_context(open_worker_connection(config, name))
        except NatsUnavailable as error:
            _log_waiting("cannot connect to NATS; retrying", error, pause)
            await asyncio.sleep(pause)
            pause = min(MAX_CONNECT_RETRY_SEC, pause * 2)
        else:
            return backend, config


def _of_running_server(config: NatsBackendConfig) -> NatsBackendConfig:
    """The server may have been started or restarted since the settings were read."""
    found = running_server()
    if found is None:
        return config
    log.info("found the server of this directory", action="worker.server_found", http_url=found.http_url)
    return replace(config, nats_url=found.nats_url)


def _log_waiting(message: str, error: NatsUnavailable, pause: float) -> None:
    """Log the reason without a traceback."""
    log.warning(message, action="worker.waiting", reason=error.detail, pause_sec=pause, **error.ids)


add_completion(app)


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
