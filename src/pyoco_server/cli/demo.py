"""`pyoco-server demo`: a demonstration in the terminal."""

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.json import JSON

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.failures import FAILED, INTERRUPTED
from pyoco_server.cli.http_server import DRAIN_SEC
from pyoco_server.cli.run_view import follow, style_for
from pyoco_server.cli.stack import (
    describe_nats,
    nats_for,
    running_stack,
    stop_signal,
    worker_child,
)
from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.http_client import PyocoHttpClient
from pyoco_server.http_client.answers import Run
from pyoco_server.logs import configure_logging
from pyoco_server.processes import free_port

HOST = "127.0.0.1"
DATA = Path(".pyoco/demo")
FLOWS = ("--flow-resolver", "pyoco_server.engine.sample_flows:resolve")
OPEN_TIMEOUT_SEC = 60.0
"""On a busy machine the first start creates its streams for seconds, and until then a run is refused."""
RUN_TIMEOUT_SEC = 60.0


async def run_demo(*, stay: bool, port: int | None) -> int:
    console = Console()
    with ExitStack() as files:
        DATA.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing is running yet
        log_path = DATA / "server.log"
        configure_logging(service="pyoco-server:http", stream=files.enter_context(log_path.open("w")))
        worker_log = files.enter_context((DATA / "worker.log").open("wb"))
        config, nats = files.enter_context(
            nats_for(NatsBackendConfig(), external=False, directory=DATA / "nats", durability="safe")
        )
        chosen = free_port(HOST, port if port is not None else 8000)
        url = f"http://{HOST}:{chosen}"
        console.print(f"[bold]NATS[/]       {describe_nats(config, nats)}")
        worker = worker_child(config, FLOWS, "demo-worker", worker_log, DRAIN_SEC)
        async with running_stack(config, nats, HOST, chosen, worker) as serving:
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
