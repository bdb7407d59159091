"""`pyoco-worker`: take jobs of some tags and run their flows."""

import asyncio
import signal
import socket
import sys
from typing import Annotated

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli.failures import INTERRUPTED, run_app, told_to_the_user
from pyoco_server.cli.loop import run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.engine.flow_resolving import FlowResolver, load_resolver
from pyoco_server.errors import NatsUnavailable
from pyoco_server.logs import configure_logging, get_logger
from pyoco_server.worker import PyocoNatsWorker

log = get_logger(__name__)
app = cyclopts.App(name="pyoco-worker", help="Run flows that were submitted to a pyoco-server.")

CONNECT_RETRY_SEC = 1.0


@app.default
def worker(
    *,
    flow_resolver: str,
    nats_url: str | None = None,
    tags: str | None = None,
    worker_id: str | None = None,
    poll_timeout: float = 1.0,
    run_once: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Start a worker.

    Parameters
    ----------
    flow_resolver
        The function that finds a flow by name: module:function or path/file.py:function.
    nats_url
        The NATS of the server (also: PYOCO_NATS_URL).
    tags
        Take jobs of these tags, e.g. cpu,linux. Default: PYOCO_DEFAULT_TAG.
    worker_id
        How the worker is called in lists; the host's name by default. One per running worker.
    poll_timeout
        With --run-once: how many seconds to wait for a job.
    run_once
        Handle one job (or none, if none comes) and stop.
    """
    with told_to_the_user():
        config = NatsBackendConfig.from_env(nats_url=nats_url)
        configure_logging(
            service="pyoco-server:worker",
            level=config.log_level,
            log_format=config.log_format,
            utc=config.log_utc,
            include_traceback=config.log_include_traceback,
        )
        resolver = load_resolver(flow_resolver)
        wanted = tuple(tag.strip() for tag in (tags or config.default_tag).split(",") if tag.strip())
        name = worker_id or socket.gethostname()
        sys.exit(run(_work(config, resolver, name, wanted, poll_timeout, once=run_once)))


async def _work(
    config: NatsBackendConfig,
    resolver: FlowResolver,
    worker_id: str,
    tags: tuple[str, ...],
    poll_timeout: float,
    *,
    once: bool,
) -> int:
    instance = await _connected(config, resolver, worker_id, tags)
    received: list[signal.Signals] = []

    def stop(by: signal.Signals) -> None:
        received.append(by)
        instance.stop()

    loop = asyncio.get_running_loop()
    for wanted in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(wanted, stop, wanted)
    try:
        if once:
            await instance.run_once(poll_timeout)
        else:
            await instance.run()
    finally:
        await instance.close()
    return INTERRUPTED if signal.SIGINT in received else 0


async def _connected(
    config: NatsBackendConfig, resolver: FlowResolver, worker_id: str, tags: tuple[str, ...]
) -> PyocoNatsWorker:
    """Workers and NATS may be started in any order: wait for it, and say so."""
    while True:
        try:
            return await PyocoNatsWorker.connect(
                config=config, flow_resolver=resolver, worker_id=worker_id, tags=tags
            )
        except NatsUnavailable as error:
            log.warning("NATS is not there yet; trying again", action="worker.waiting", exc_info=error)
            await asyncio.sleep(CONNECT_RETRY_SEC)


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
