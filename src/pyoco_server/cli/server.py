"""`pyoco-server`: start everything on one machine, or the gateway of a larger installation."""

import signal
import sys
from pathlib import Path
from typing import Annotated, Literal

import cyclopts
import msgspec
from cyclopts import Parameter

from pyoco_server.cli.demo import run_demo
from pyoco_server.cli.failures import FAILED, INTERRUPTED, run_app, told_to_the_user
from pyoco_server.cli.loop import run
from pyoco_server.cli.ports import require_free
from pyoco_server.cli.stack import (
    Child,
    describe_nats,
    nats_for,
    running_stack,
    say,
    stop_signal,
    worker_child,
)
from pyoco_server.config import NatsBackendConfig, is_set
from pyoco_server.http_api import create_app
from pyoco_server.logs import configure_logging
from pyoco_server.wiring import Durability, EmbeddedNats, without_credentials

app = cyclopts.App(name="pyoco-server", help="Run Python workflows on your own machines.")


@app.command
def up(  # noqa: PLR0913 - the options of the contract
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    nats_url: str | None = None,
    data_dir: Path = Path(".pyoco"),
    durability: Durability = "safe",
    with_worker: Annotated[bool, Parameter(negative="")] = False,
    flow_resolver: str = "pyoco_server.engine.sample_flows:resolve",
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None = None,
    dashboard_lang: Literal["auto", "ja", "en"] | None = None,
) -> None:
    """Start the gateway. Without a NATS url it brings its own NATS along.

    Parameters
    ----------
    host
        Address to listen on. The default is reachable from this machine only.
    port
        Port to listen on.
    nats_url
        Use this NATS instead of starting one (also: PYOCO_NATS_URL).
    data_dir
        Where the embedded NATS keeps its data.
    durability
        Embedded NATS only. safe: every accepted run is on disk before it is answered, so a power cut
        loses nothing; fast: a power cut may lose the last second. A killed process loses nothing in either.
    with_worker
        Also start a worker for the default tag on this machine.
    flow_resolver
        Which flows that worker runs: module:function or path/file.py:function.
    log_level
        Log this level and above (also: PYOCO_LOG_LEVEL).
    dashboard_lang
        Language of the dashboard (also: PYOCO_DASHBOARD_LANG).
    """
    with told_to_the_user():
        config = NatsBackendConfig.from_env(
            nats_url=nats_url, log_level=log_level, dashboard_lang=dashboard_lang
        )
        configure_logging(
            service="pyoco-server:http",
            level=config.log_level,
            log_format=config.log_format,
            utc=config.log_utc,
            include_traceback=config.log_include_traceback,
        )
        require_free(host, port)
        external = nats_url is not None or is_set("nats_url")
        with nats_for(config, external=external, directory=data_dir / "nats", durability=durability) as (
            usable,
            nats,
        ):
            say(f"NATS     {describe_nats(usable, nats)}")
            worker = worker_child(usable, flow_resolver, "worker", None) if with_worker else None
            sys.exit(run(_serve(usable, nats, host, port, worker)))


async def _serve(
    config: NatsBackendConfig, nats: EmbeddedNats | None, host: str, port: int, worker: Child | None
) -> int:
    async with running_stack(config, nats, host, port, worker) as serving:
        say(f"HTTP     http://{host}:{port}   (API: http://{host}:{port}/docs)")
        if worker is None:
            command = f"pyoco-worker --flow-resolver flows.py:resolve{_where(config)}"
            say(f"Worker   none here; start one:  {command}")
        else:
            say("Worker   on this machine, tag default")
        say("Ctrl-C stops it.")
        received = await stop_signal(serving)
    if received is signal.SIGINT:
        return INTERRUPTED
    return 0 if received is signal.SIGTERM else FAILED


def _where(config: NatsBackendConfig) -> str:
    """What a worker has to be told: a plain one goes to the default port, whoever is there."""
    is_default = config.nats_url == NatsBackendConfig.nats_url
    return "" if is_default else f" --nats-url {without_credentials(config.nats_url)}"


@app.command
def demo(*, stay: Annotated[bool, Parameter(negative="")] = False, port: int | None = None) -> None:
    """Start everything, run a sample flow and show it live.

    Parameters
    ----------
    stay
        Stay up afterwards, to be tried by hand.
    port
        Port of the gateway; any free one by default.
    """
    with told_to_the_user():
        sys.exit(run(run_demo(stay=stay, port=port)))


@app.command
def openapi() -> None:
    """Print the description of the HTTP API (OpenAPI, as JSON)."""
    document = create_app(NatsBackendConfig()).openapi()
    print(msgspec.json.format(msgspec.json.encode(document)).decode())


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
