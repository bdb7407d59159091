"""`pyoco-server`: start the gateway, alone or with NATS and a worker; agents, demo, template, diagnosis.

A command imports what it needs when it is called: the web framework takes a second, which `--help` and `init`
would wait for in vain.
"""

import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import cyclopts
import msgspec
from cyclopts import Parameter

from pyoco_server.cli import language, server_texts as texts
from pyoco_server.cli.failures import reporting_failures, run_app
from pyoco_server.cli.output import (
    NO_BOOTSTRAP,
    NO_NATS_OPTIONS,
    BootstrapOptions,
    Flag,
    Host,
    NatsOptions,
    Port,
    Quiet,
    print_json,
    server_url,
)
from pyoco_server.cli.terminal import add_completion, run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import InvalidCliInput
from pyoco_server.logs import configure_logging
from pyoco_server.mcp import Change
from pyoco_server.running_server import Durability

if TYPE_CHECKING:
    from pyoco_server.cli.doctor import Finding

app = cyclopts.App(name="pyoco-server", help="Run Python workflows on your own machines.")


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
        Directory of the embedded NATS's data and of the gateway's run index.
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
        _check(bootstrap)
        flow_source = _flow_source(flow_resolver, flows)
        config = NatsBackendConfig.from_env(
            nats_url=nats_url, log_level=log_level, dashboard_lang=dashboard_lang, **vars(access)
        )
        configure_logging(service="pyoco-server:http", level=config.log_level)
        from pyoco_server.cli.serving import Place, run_up  # noqa: PLC0415 - see the top of this file

        place = Place(host, port, data_dir, durability, nats_url=nats_url, bootstrap=bootstrap)
        sys.exit(run_up(config, place, flow_source if with_worker else None, drain_timeout))


def _check(options: BootstrapOptions) -> None:
    """Refuse bootstrap options without --with-nats-bootstrap."""
    for option in fields(options):
        if not options.with_nats_bootstrap and getattr(options, option.name) not in (None, False):
            raise InvalidCliInput(texts.ONLY_WITH_BOOTSTRAP(option=f"--{option.name.replace('_', '-')}"))


def _flow_source(flow_resolver: str | None, flows: Path | None) -> tuple[str, str]:
    """The corresponding option of `pyoco-worker`."""
    if flows is None:
        return ("--flow-resolver", flow_resolver or SAMPLE_FLOWS)
    if flow_resolver is not None:
        raise InvalidCliInput(texts.FLOWS_OR_RESOLVER())
    if not flows.is_dir():
        raise InvalidCliInput(texts.FLOWS_NOT_A_DIRECTORY(path=flows))
    return ("--flows", str(flows))


@app.command
def demo(*, stay: Flag = False, fill: Flag = False, port: int | None = None) -> None:
    """Start everything, run a sample flow and show its progress.

    Parameters
    ----------
    stay
        Keep running afterwards.
    fill
        Show a whole installation instead, with two workers, and keep running: flows, failures, schedules,
        limits, people to be asked, dead letters.
    port
        Gateway port. Default: a free port.
    """
    from pyoco_server.cli.serving import run_demo, run_filled_demo  # noqa: PLC0415 - see the top of this file

    with reporting_failures():
        sys.exit(run(run_filled_demo(port) if fill else run_demo(stay=stay, port=port)))


@app.command
def mcp(
    *,
    server: str | None = None,
    api_key_header: str = "X-API-Key",
    allow: Annotated[list[Change] | None, Parameter(negative="")] = None,
    http: Flag = False,
    host: str = "127.0.0.1",
    port: int = 8100,
) -> None:
    """Serve tools for agents (Model Context Protocol), over stdin and stdout or over HTTP.

    Parameters
    ----------
    server
        Server URL (also: PYOCO_SERVER_URL). Default: the server started in this directory, else
        http://127.0.0.1:8000
    api_key_header
        HTTP header for the API key. The key itself is PYOCO_API_KEY or PYOCO_API_KEY_FILE; over HTTP, agents
        send their own.
    allow
        Also offer tools that change something: submit, cancel or retry runs, answer waits. Repeatable.
    http
        Listen for HTTP requests at /mcp instead.
    host
        With --http: listen address. The default is reachable from this machine only.
    port
        With --http: listen port.
    """
    with reporting_failures():
        from pyoco_server.cli.mcp_server import Offer, serve_http, serve_stdio  # noqa: PLC0415 - see the top

        offer = Offer(server_url(server), api_key_header, frozenset(allow or ()))
        if http:
            sys.exit(serve_http(offer, host, port))
        serve_stdio(offer)


@app.command
def openapi() -> None:
    """Print the OpenAPI document of the HTTP API as JSON."""
    from pyoco_server.http_api import create_app  # noqa: PLC0415 - see the top of this file

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
        Output format.
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


# The starter project of `init`

STARTER = Path(__file__).parent / "starter"
MAX_NAMES = 3


def make_project(directory: Path, *, force: bool) -> list[Path]:
    """Write the files and return their names. Raises InvalidCliInput if the directory is not empty."""
    _check_empty(directory, force=force)
    written = []
    try:
        for source, name in _files():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            written.append(name)
    except OSError as error:
        raise InvalidCliInput(texts.CANNOT_WRITE(path=directory, reason=error.strerror)) from error
    return written


def _check_empty(directory: Path, *, force: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise InvalidCliInput(texts.NOT_A_DIRECTORY(path=directory))
    existing = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if existing and not force:
        more = ", …" if len(existing) > MAX_NAMES else ""
        raise InvalidCliInput(
            texts.DIRECTORY_NOT_EMPTY(path=directory, names=", ".join(existing[:MAX_NAMES]) + more)
        )


def _files() -> Iterator[tuple[Path, Path]]:
    """Each starter file and its name in the project; of the READMEs, the one in the user's language."""
    names = {Path("gitignore"): Path(".gitignore"), Path(f"README.{language()}.md"): Path("README.md")}
    for source in sorted(STARTER.rglob("*")):
        name = source.relative_to(STARTER)
        if source.is_dir() or "__pycache__" in name.parts:
            continue
        if name.name.startswith("README.") and name not in names:
            continue
        yield source, names.get(name, name)


@app.command
def doctor(  # noqa: PLR0913 - one argument per option
    *,
    server: str | None = None,
    nats_url: str | None = None,
    access: NatsOptions = NO_NATS_OPTIONS,
    data_dir: Path = Path(".pyoco"),
    output: Literal["table", "json"] = "table",
    json: Flag = False,
    quiet: Quiet = False,
    live: Flag = False,
    interval_sec: float = 5.0,
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
        Output format; json is always in English.
    json
        Same as --output json.
    quiet
        Print problems only.
    live
        Keep checking until Ctrl-C, and print problems as they appear and disappear; one object per line with
        --json.
    interval_sec
        With --live: seconds between two checks.
    """
    # See the top of this file.
    from pyoco_server.cli.doctor import check_installed, examine, show  # noqa: PLC0415
    from pyoco_server.cli.doctor_live import watch  # noqa: PLC0415

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
        as_json, installed = json or output == "json", check_installed()

        def check() -> list["Finding"]:
            return [*installed, *examine(server_url(server, data_dir), options, data_dir)]

        if live:
            if interval_sec <= 0:
                raise InvalidCliInput(texts.BAD_INTERVAL(given=f"{interval_sec:g}"))
            watch(check, interval_sec, as_json=as_json, is_quiet=quiet)
        sys.exit(show(check(), as_json=as_json, problems_only=quiet))


add_completion(app)


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
