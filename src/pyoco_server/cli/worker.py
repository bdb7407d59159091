"""`pyoco-worker`: take jobs of some tags and run their flows."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import cyclopts
from msgspec import Struct

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.completion import add_completion
from pyoco_server.cli.failures import FAILED, INTERRUPTED, run_app, told_to_the_user
from pyoco_server.cli.loop import serve
from pyoco_server.cli.options import Flag
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import IncompatibleNats, InvalidCliInput, NatsUnavailable
from pyoco_server.logs import configure_logging, get_logger
from pyoco_server.usecases.ports import WorkerBackend
from pyoco_server.wiring import ExecutorSpec, Limits, open_process_executors, open_wheels, open_worker_backend
from pyoco_server.worker.keep_wheels import KeepWheels, new_keep_wheels
from pyoco_server.worker.presence import WorkerIdInUse
from pyoco_server.worker.worker import SideWorkEnded, Worker, check_names

log = get_logger(__name__)
app = cyclopts.App(name="pyoco-worker", help="Run flows that were submitted to a pyoco-server.")

CONNECT_RETRY_SEC = 1.0


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
    poll_timeout: float = 1.0,
    run_once: Flag = False,
) -> None:
    """Start a worker.

    Parameters
    ----------
    flow_resolver
        Where flows come from: a function that finds a flow by its name (module:function or
        path/file.py:function), or a module of flows (my_package.flows or path/flows.py).
    flows
        Instead of --flow-resolver: a directory of flow files (*.py), loaded again when they change.
    nats_url
        The NATS of the server (also: PYOCO_NATS_URL).
    tags
        Take jobs of these tags, e.g. cpu,linux. Default: PYOCO_DEFAULT_TAG.
    worker_id
        How the worker is called in lists; the host's name by default. One per running worker.
    concurrency
        How many flows run at once, each in a process of its own. Default: the number of CPUs.
    max_runs_per_process
        Replace a process after so many runs; 0: never.
    max_memory_mb
        Replace a process that has grown beyond this after a run; 0: never.
    drain_timeout
        After SIGTERM: how many seconds running flows may take to end before they are given back.
    wheel_sync
        Install the wheels that are registered for these tags (also: PYOCO_WHEEL_SYNC_ENABLED).
    wheel_sync_dir
        Where they are installed (also: PYOCO_WHEEL_SYNC_DIR).
    wheel_sync_interval_sec
        How often to look for new ones (also: PYOCO_WHEEL_SYNC_INTERVAL_SEC).
    wheel_install_timeout_sec
        How long installing one may take (also: PYOCO_WHEEL_INSTALL_TIMEOUT_SEC).
    poll_timeout
        With --run-once: how many seconds to wait for a job.
    run_once
        Handle one job (or none, if none comes) and stop.
    """
    with told_to_the_user():
        config = NatsBackendConfig.from_env(
            nats_url=nats_url,
            wheel_sync_enabled=wheel_sync,
            wheel_sync_dir=wheel_sync_dir,
            wheel_sync_interval_sec=wheel_sync_interval_sec,
            wheel_install_timeout_sec=wheel_install_timeout_sec,
        )
        configure_logging(
            service="pyoco-server:worker",
            level=config.log_level,
            log_format=config.log_format,
            utc=config.log_utc,
            include_traceback=config.log_include_traceback,
        )
        options = Options(
            worker_id=worker_id or socket.gethostname(),
            tags=tuple(tag.strip() for tag in (tags or config.default_tag).split(",") if tag.strip()),
            flow_resolver=_flow_source(flow_resolver, flows),
            concurrency=_concurrency(concurrency, run_once=run_once),
            limits=Limits(max_runs=max_runs_per_process, max_rss_bytes=max_memory_mb * 1024 * 1024),
            drain_timeout=drain_timeout,
            poll_timeout=poll_timeout,
            run_once=run_once,
        )
        _check(options)
        sys.exit(serve(_work(config, options)))


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


async def _work(config: NatsBackendConfig, options: Options) -> int:
    async with AsyncExitStack() as stack:
        spec = ExecutorSpec(flow_resolver=options.flow_resolver, allowed_modules=config.allowed_modules)
        wheels = await _synced_wheels(stack, config, options, spec)
        # Before we wait for NATS: flows that cannot be loaded are told at once.
        executors = await stack.enter_async_context(
            open_process_executors(wheels.spec if wheels else spec, options.concurrency, options.limits)
        )
        if wheels is not None:
            wheels.executors = executors
        backend = await _connected(stack, config, options.worker_id)
        instance = Worker(config, backend, executors, options.worker_id, options.tags, wheels)
        try:
            await _opened(instance)
        except WorkerIdInUse as error:
            raise InvalidCliInput(texts.WORKER_ID_IN_USE(reason=error)) from error
        received = _stop_on_signals(instance)
        try:
            await _serve(instance, options)
        except SideWorkEnded:
            log.exception("the worker stops", action="worker.failed")
            return FAILED
        finally:
            await instance.close()
    return INTERRUPTED if signal.SIGINT in received else 0


async def _synced_wheels(
    stack: AsyncExitStack, config: NatsBackendConfig, options: Options, spec: ExecutorSpec
) -> KeepWheels | None:
    """Synced before anything is loaded: the flows themselves may come in a wheel."""
    if not config.wheel_sync_enabled:
        return None
    wheels = await stack.enter_async_context(open_wheels(config))
    keeper = new_keep_wheels(wheels, config, options.worker_id, options.tags, spec)
    await keeper.sync()
    return keeper


async def _serve(instance: Worker, options: Options) -> None:
    if options.run_once:
        await instance.handle_one(options.poll_timeout)
        return
    await instance.run()
    left = await instance.drain(options.drain_timeout)
    if left:
        log.warning("runs that did not end in time are given back", action="worker.gave_back", runs=left)


def _stop_on_signals(instance: Worker) -> list[signal.Signals]:
    """Stops politely at the first signal. Answers with a list that tells which it was."""
    received: list[signal.Signals] = []

    def stop(by: signal.Signals) -> None:
        received.append(by)
        instance.stop()

    loop = asyncio.get_running_loop()
    for wanted in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(wanted, stop, wanted)
    return received


async def _opened(instance: Worker) -> None:
    """NATS may go away again while the worker is starting; the connection comes back by itself."""
    while True:
        try:
            await instance.open()
        except IncompatibleNats:
            raise
        except NatsUnavailable as error:
            log.warning("NATS went away; trying again", action="worker.waiting", exc_info=error)
            await asyncio.sleep(CONNECT_RETRY_SEC)
        else:
            return


async def _connected(stack: AsyncExitStack, config: NatsBackendConfig, worker_id: str) -> WorkerBackend:
    """Workers and NATS may be started in any order: wait for it, and say so."""
    while True:
        try:
            return await stack.enter_async_context(
                open_worker_backend(config, name=f"pyoco-worker {worker_id}")
            )
        except NatsUnavailable as error:
            log.warning("NATS is not there yet; trying again", action="worker.waiting", exc_info=error)
            await asyncio.sleep(CONNECT_RETRY_SEC)


add_completion(app)


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
