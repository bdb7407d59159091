"""`pyoco-server`: start the gateway, alone or with NATS and a worker; demo, project template, diagnosis."""

import shlex
import signal
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import cyclopts
import msgspec

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.demo import make_project, run_demo
from pyoco_server.cli.doctor import examine, show
from pyoco_server.cli.failures import FAILED, INTERRUPTED, reporting_failures, run_app
from pyoco_server.cli.http_server import Host, Port, holder_of, is_loopback, local_url, require_free
from pyoco_server.cli.output import NO_NATS_OPTIONS, Flag, NatsOptions, Quiet, note, print_json, server_url
from pyoco_server.cli.stack import (
    NO_BOOTSTRAP,
    BootstrapOptions,
    Child,
    OwnNats,
    bootstrapped_nats,
    check_options,
    describe_nats,
    nats_for,
    running_stack,
    stop_signal,
    worker_child,
)
from pyoco_server.cli.terminal import add_completion, run, serve
from pyoco_server.config import NATS_ACCESS, NatsBackendConfig, env_name, is_set
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_api import create_app
from pyoco_server.http_api.pages import is_built
from pyoco_server.logs import configure_logging
from pyoco_server.processes import is_taken
from pyoco_server.running_server import RunningServer, announced
from pyoco_server.wiring import Durability, EmbeddedNats, check_nats_access, without_credentials

app = cyclopts.App(name="pyoco-server", help="Run Python workflows on your own machines.")


DEFAULT_NATS_PORT = 4222
SAMPLE_FLOWS = "pyoco_server.engine.sample_flows:resolve"


@app.command
def up(  # noqa: PLR0913 - the options of the contract
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    nats_url: str | None = None,
    access: NatsOptions = NO_NATS_OPTIONS,
    data_dir: Path = Path(".pyoco"),
    durability: Durability = "safe",
    with_worker: Flag = False,
    flow_resolver: str | None = None,
    flows: Path | None = None,
    drain_timeout: float = 60.0,
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] | None = None,
    dashboard_lang: Literal["auto", "ja", "en"] | None = None,
    bootstrap: BootstrapOptions = NO_BOOTSTRAP,
) -> None:
    """Start the gateway. Without a NATS URL it also starts an embedded NATS.

    Parameters
    ----------
    host
        Listen address (also: PYOCO_HTTP_HOST). The default is reachable from this machine only.
    port
        Listen port (also: PYOCO_HTTP_PORT).
    nats_url
        Use this NATS instead of starting one (also: PYOCO_NATS_URL).
    data_dir
        Data directory of the embedded NATS.
    durability
        Embedded NATS only. safe: writes every accepted run to disk before responding, so a power failure
        loses nothing; fast: a power failure may lose the last second. Killing the process loses nothing in
        either mode.
    with_worker
        Also start a worker for the default tag on this machine.
    flow_resolver
        Flows of that worker: module:function or path/file.py:function. Default: a sample flow.
    flows
        Instead of --flow-resolver: a directory of flow files (*.py), reloaded on change.
    drain_timeout
        After SIGTERM or Ctrl-C: seconds to wait for running flows before they are returned to the queue. A
        second Ctrl-C returns them immediately.
    log_level
        Minimum log level (also: PYOCO_LOG_LEVEL).
    dashboard_lang
        Dashboard language (also: PYOCO_DASHBOARD_LANG).
    """
    with reporting_failures():
        check_options(bootstrap)
        flow_source = _flow_source(flow_resolver, flows)
        config = NatsBackendConfig.from_env(
            nats_url=nats_url, log_level=log_level, dashboard_lang=dashboard_lang, **vars(access)
        )
        check_nats_access(config)
        configure_logging(
            service="pyoco-server:http",
            level=config.log_level,
        )
        require_free(host, port)
        with _nats(config, bootstrap, data_dir, durability, url=nats_url) as (usable, nats):
            worker = worker_child(usable, flow_source, "worker", None, drain_timeout) if with_worker else None
            server = RunningServer(nats_url=usable.nats_url, http_url=local_url(host, port))
            with announced(server, data_dir):
                sys.exit(serve(_serve(usable, nats, host, port, worker)))


def _nats(
    config: NatsBackendConfig,
    bootstrap: BootstrapOptions,
    data_dir: Path,
    durability: Durability,
    *,
    url: str | None,
) -> AbstractContextManager[tuple[NatsBackendConfig, OwnNats | None]]:
    url_is_given = url is not None or is_set("nats_url")
    unused = [env_name(name) for name in NATS_ACCESS if getattr(config, name)]
    if unused and (bootstrap.with_nats_bootstrap or not url_is_given):
        raise InvalidCliInput(texts.NATS_ACCESS_UNUSED(settings=", ".join(unused)))
    if bootstrap.with_nats_bootstrap:
        return bootstrapped_nats(bootstrap, config, data_dir / "nats-bootstrap", url_is_given=url_is_given)
    return nats_for(config, external=url_is_given, directory=data_dir / "nats", durability=durability)


def _flow_source(flow_resolver: str | None, flows: Path | None) -> tuple[str, str]:
    """The corresponding option of `pyoco-worker`."""
    if flows is None:
        return ("--flow-resolver", flow_resolver or SAMPLE_FLOWS)
    if flow_resolver is not None:
        raise InvalidCliInput(texts.FLOWS_OR_RESOLVER())
    if not flows.is_dir():
        raise InvalidCliInput(texts.FLOWS_NOT_A_DIRECTORY(path=flows))
    return ("--flows", str(flows))


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


@app.command
def demo(*, stay: Flag = False, port: int | None = None) -> None:
    """Start everything, run a sample flow and show its progress.

    Parameters
    ----------
    stay
        Keep running afterwards.
    port
        Gateway port. Default: a free port.
    """
    with reporting_failures():
        sys.exit(run(run_demo(stay=stay, port=port)))


@app.command
def openapi() -> None:
    """Print the OpenAPI document of the HTTP API as JSON."""
    document = create_app(NatsBackendConfig()).openapi()
    print(msgspec.json.format(msgspec.json.encode(document)).decode())


@app.command
def init(
    directory: Path,
    /,
    *,
    force: Flag = False,
    output: Literal["text", "json"] = "text",
    quiet: Quiet = False,
) -> None:
    """Create a starter project: flows, a flow.yaml, a graph, a template and tests.

    Parameters
    ----------
    directory
        Target directory; created if missing.
    force
        Write into a non-empty directory; files of the same name are replaced.
    output
        text for people, json for programs.
    quiet
        Print the file names only.
    """
    with reporting_failures():
        written = make_project(directory, force=force)
        if output == "json":
            print_json({"directory": str(directory), "files": list(written)})
            return
        if quiet:
            print(*written, sep="\n")
            return
        print(texts.PROJECT_MADE(path=directory, count=len(written)))
        for name in written:
            print(f"  {name}")
        print(texts.PROJECT_NEXT(path=shlex.quote(str(directory))))


@app.command
def doctor(
    *,
    server: str | None = None,
    nats_url: str | None = None,
    access: NatsOptions = NO_NATS_OPTIONS,
    data_dir: Path = Path(".pyoco"),
    output: Literal["table", "json"] = "table",
    json: Flag = False,
    quiet: Quiet = False,
) -> None:
    """Check this machine and the installation, and suggest fixes. Exit code 1 if a check fails.

    Parameters
    ----------
    server
        Gateway URL (also: PYOCO_SERVER_URL). Default: the server started in this directory, else
        http://127.0.0.1:8000
    nats_url
        NATS URL to check (also: PYOCO_NATS_URL). Default: the embedded NATS of --data-dir.
    data_dir
        Data directory of the embedded NATS.
    output
        table for people; json for programs, always in English.
    json
        Same as --output json.
    quiet
        Print problems only.
    """
    with reporting_failures():
        configure_logging(  # fixed values: invalid log settings must not stop the diagnosis
            service="pyoco-server:doctor",
            level="CRITICAL",
            log_format="text",
            utc=True,
            include_traceback=False,
            stream=sys.stderr,
        )
        options = {"nats_url": nats_url, **vars(access)}
        findings = examine(server_url(server, data_dir), options, data_dir)
        sys.exit(show(findings, as_json=json or output == "json", problems_only=quiet))


add_completion(app)


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
