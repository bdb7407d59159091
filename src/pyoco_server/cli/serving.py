"""Gateway, NATS and worker until they are stopped: `pyoco-server up`, and `pyoco-server demo`."""

import asyncio
import signal
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.json import JSON

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.demo_fill import fill
from pyoco_server.cli.failures import FAILED, INTERRUPTED
from pyoco_server.cli.http_server import DRAIN_SEC, holder_of, local_url, require_free
from pyoco_server.cli.output import BootstrapOptions, note
from pyoco_server.cli.run_view import follow, style_for
from pyoco_server.cli.stack import (
    Child,
    OwnNats,
    bootstrapped_nats,
    describe_nats,
    nats_for,
    running_stack,
    stop_signal,
    worker_child,
)
from pyoco_server.cli.terminal import serve
from pyoco_server.config import NATS_ACCESS, NatsBackendConfig, env_name, is_set
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.environment import is_loopback
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_api.pages import is_built
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import Run
from pyoco_server.logs import configure_logging
from pyoco_server.processes import free_port, is_taken
from pyoco_server.running_server import Durability, RunningServer, announced
from pyoco_server.wiring import EmbeddedNats, check_nats_access, without_credentials

# All that `up` starts, and what a person reads first

DEFAULT_NATS_PORT = 4222
INDEX_FILE = Path("index") / "runs.sqlite"


@dataclass(frozen=True)
class Place:
    """Where to listen, and which NATS to use or where to keep its data."""

    host: str
    port: int
    data_dir: Path
    durability: Durability
    nats_url: str | None
    bootstrap: BootstrapOptions


def run_up(
    config: NatsBackendConfig, place: Place, worker_flows: tuple[str, str] | None, drain_sec: float
) -> int:
    """The exit code. `worker_flows`: the flow option of the worker and its value; None: without a worker."""
    check_nats_access(config)
    require_free(place.host, place.port)
    with _nats(_with_index(config, place.data_dir), place) as (usable, nats):
        worker = (
            None if worker_flows is None else worker_child(usable, worker_flows, "worker", None, drain_sec)
        )
        server = RunningServer(nats_url=usable.nats_url, http_url=local_url(place.host, place.port))
        with announced(server, place.data_dir):
            return serve(_serve(usable, nats, place.host, place.port, worker))


def _with_index(config: NatsBackendConfig, data_dir: Path) -> NatsBackendConfig:
    """By default the index of runs is in the data directory."""
    return config if config.read_model_path else replace(config, read_model_path=str(data_dir / INDEX_FILE))


def _nats(
    config: NatsBackendConfig, place: Place
) -> AbstractContextManager[tuple[NatsBackendConfig, OwnNats | None]]:
    url_is_given = place.nats_url is not None or is_set("nats_url")
    unused = [env_name(name) for name in NATS_ACCESS if getattr(config, name)]
    if unused and (place.bootstrap.with_nats_bootstrap or not url_is_given):
        raise InvalidCliInput(texts.NATS_ACCESS_UNUSED(settings=", ".join(unused)))
    if place.bootstrap.with_nats_bootstrap:
        return bootstrapped_nats(
            place.bootstrap, config, place.data_dir / "nats-bootstrap", url_is_given=url_is_given
        )
    return nats_for(
        config, external=url_is_given, directory=place.data_dir / "nats", durability=place.durability
    )


async def _serve(
    config: NatsBackendConfig, nats: OwnNats | None, host: str, port: int, worker: Child | None
) -> int:
    async with running_stack(config, nats, host, port, worker) as serving:
        note(f"NATS       {describe_nats(config, nats)}")
        _note_ignored_nats(nats)
        url = local_url(host, port)
        note((texts.DASHBOARD_AT if is_built() else texts.DASHBOARD_MISSING)(url=url))
        note(texts.HTTP_AT(url=url))
        if config.http_auth_mode == "none" and not is_loopback(host):
            note(texts.OPEN_TO_THE_NETWORK(host=host))
        if worker is None:
            command = f"pyoco-worker --flows DIR{_nats_option(config)}"
            note(texts.NO_WORKER_HERE(command=command))
        else:
            note(texts.WORKER_HERE(tag=config.default_tag))
        note(texts.CTRL_C_STOPS_IT())
        received = await stop_signal(serving, worker)
    if received is signal.SIGINT:
        return INTERRUPTED
    return 0 if received is signal.SIGTERM else FAILED


def _note_ignored_nats(nats: OwnNats | None) -> None:
    """Another program has the default port, and a worker started elsewhere would connect to it."""
    if (
        isinstance(nats, EmbeddedNats)
        and nats.port != DEFAULT_NATS_PORT
        and is_taken("127.0.0.1", DEFAULT_NATS_PORT)
    ):
        holder = holder_of(DEFAULT_NATS_PORT) or texts.ANOTHER_PROGRAM()
        note(texts.NATS_IGNORED(holder=holder, url=nats.url))


def _nats_option(config: NatsBackendConfig) -> str:
    """The option a worker needs to connect here; without it a worker uses the default port."""
    is_default = config.nats_url == NatsBackendConfig.nats_url
    return "" if is_default else f" --nats-url {without_credentials(config.nats_url)}"


# The demonstration in the terminal

DEMO_HOST = "127.0.0.1"
DEMO_DATA = Path(".pyoco/demo")
DEMO_FLOWS = ("--flow-resolver", "pyoco_server.engine.sample_flows:resolve")
OPEN_TIMEOUT_SEC = 60.0
"""On a busy machine the first start creates its streams for seconds, and until then a run is refused."""
RUN_TIMEOUT_SEC = 60.0
STOP_AT_ONCE_SEC = 0.0
"""Its long run goes back to the queue, and on at the next start."""


FILLED_DATA = Path(".pyoco/demo-shop")
FILLED_MARK = FILLED_DATA / "filled"
SHOP_FLOWS = ("--flow-resolver", "pyoco_server.engine.demo_flows:resolve")


async def run_filled_demo(port: int | None) -> int:
    """A whole installation to explore, until it is stopped. Its data are kept: it is filled once."""
    console = Console()
    with ExitStack() as files:
        FILLED_DATA.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing is running yet
        log = files.enter_context((FILLED_DATA / "server.log").open("w"))
        configure_logging(service="pyoco-server:http", stream=log)
        worker_log = files.enter_context((FILLED_DATA / "worker.log").open("wb"))
        config, nats = files.enter_context(
            nats_for(NatsBackendConfig(), external=False, directory=FILLED_DATA / "nats", durability="fast")
        )
        chosen = free_port(DEMO_HOST, port if port is not None else 8000)
        url = f"http://{DEMO_HOST}:{chosen}"
        workers = [
            worker_child(
                config, SHOP_FLOWS, name, worker_log, STOP_AT_ONCE_SEC, "--concurrency", "3", "--tags", tags
            )
            for name, tags in (("node-1", "default"), ("node-2", "default,reports"))
        ]
        async with running_stack(config, nats, DEMO_HOST, chosen, *workers) as serving:
            await serving.opened(OPEN_TIMEOUT_SEC)
            if not FILLED_MARK.exists():
                console.print(texts.FILLING())
                await asyncio.to_thread(_filled, url)
            console.print(f"[bold]Dashboard[/]  {url}/")
            console.print(texts.CTRL_C_STOPS_IT())
            received = await stop_signal(serving, workers[0])
            return INTERRUPTED if received is signal.SIGINT else 0


def _filled(url: str) -> None:
    with PyocoHttpClient(url) as client:
        fill(client)
    FILLED_MARK.touch()


async def run_demo(*, stay: bool, port: int | None) -> int:
    console = Console()
    with ExitStack() as files:
        DEMO_DATA.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing is running yet
        log_path = DEMO_DATA / "server.log"
        configure_logging(service="pyoco-server:http", stream=files.enter_context(log_path.open("w")))
        worker_log = files.enter_context((DEMO_DATA / "worker.log").open("wb"))
        config, nats = files.enter_context(
            nats_for(NatsBackendConfig(), external=False, directory=DEMO_DATA / "nats", durability="safe")
        )
        chosen = free_port(DEMO_HOST, port if port is not None else 8000)
        url = f"http://{DEMO_HOST}:{chosen}"
        console.print(f"[bold]NATS[/]       {describe_nats(config, nats)}")
        worker = worker_child(config, DEMO_FLOWS, "demo-worker", worker_log, DRAIN_SEC)
        async with running_stack(config, nats, DEMO_HOST, chosen, worker) as serving:
            console.print(f"[bold]Gateway[/]    {url}   (log: {log_path})")
            await serving.opened(OPEN_TIMEOUT_SEC)
            run = await asyncio.to_thread(_show_a_run, console, url)
            if stay:
                _print_next_steps(console, url)
                received = await stop_signal(serving, worker)
                return INTERRUPTED if received is signal.SIGINT else 0
    console.print(texts.DEMO_STOPPED(), style="dim")
    return 0 if run["status"] == RunStatus.COMPLETED else FAILED


def _show_a_run(console: Console, url: str) -> Run:
    with PyocoHttpClient(url) as client:
        run_id = client.submit_run("sample", {"rows": 5})["run_id"]
        console.print(
            f'[bold]POST[/] /runs  {{"flow_name": "sample", "params": {{"rows": 5}}}}  →  {run_id}\n'
        )
        events = client.watch_run(run_id, records=True, timeout_sec=RUN_TIMEOUT_SEC)
        style = style_for(console.file, "status")
        run = follow(client, run_id, events, style, console.file)
    console.print(f"\n[bold]Status[/]     {run['status']}")
    console.print("[bold]Result[/]    ", JSON.from_data(run["result"], indent=None), end="")
    console.print(f"\n[bold]Dashboard[/]  {url}/")
    return run


def _print_next_steps(console: Console, url: str) -> None:
    console.print(f"\n{texts.TRY_IT()}")
    for line in (
        f"curl {url}/runs -H 'content-type: application/json' -d '{{\"flow_name\": \"sample\"}}'",
        f"pyoco-client submit --server {url} --flow-name sample --params '{{\"rows\": 9}}'",
    ):
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    console.print(texts.CTRL_C_STOPS_IT())
