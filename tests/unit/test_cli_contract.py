"""REQ-0021: the words of the command line that scripts rely on."""

import shlex
from typing import Any

import cyclopts
import pytest

from pyoco_server import admin_cli
from pyoco_server.cli import client, server, worker
from support.tables import every_row

CLIENT = [
    "submit --flow-name f --params {} --params-file p --param a=1 --param b=2 --tag t --tags a,b --wait",
    "submit-yaml --workflow-file f.yaml --flow-name f --tag t",
    "get RUN --records",
    "tasks RUN",
    "list --status FAILED --flow f --tag t --full --limit 5 --output json",
    "list --output table",
    "list-vnext --status FAILED --flow f --tag t --full --limit 5",
    "list-vnext --updated-after 1.5 --cursor c --workflow-yaml-sha256 s --output table",
    "watch RUN --records --since 1 --timeout-sec 2 --max-events 3 --until-terminal --output json",
    "watch RUN --output status",
    "cancel --run-id RUN --wait --timeout-sec 5",
    "workers --scope all --state IDLE --include-hidden --limit 5 --output table",
    "worker-hide W",
    "worker-show W",
    "metrics",
    "wheels",
    "wheel-history --limit 100 --wheel-name x.whl --action upload",
    "wheel-upload --wheel-file x.whl --tags cpu,linux --replace",
    "wheel-upload --wheel-file x.whl --no-replace",
    "wheel-delete --name x.whl",
]
SERVER = [
    "up --host h --port 1 --log-level INFO --nats-url u --dashboard-lang ja",
    "up --with-nats-bootstrap --nats-listen-host h --nats-client-port 1 --nats-http-port 2",
    "up --with-worker",
    "doctor",
]
WORKER = [
    "--nats-url u --tags a,b --worker-id w --flow-resolver m:f --poll-timeout 3 --run-once",
    "--wheel-sync --wheel-sync-dir d --wheel-sync-interval-sec 1 --wheel-install-timeout-sec 2",
    "--flow-resolver path/file.py:f --no-wheel-sync",
]
ADMIN = ["api-key create --tenant t", "api-key list", "api-key revoke --key-id k"]

LINES = [
    *((client.app, line) for line in CLIENT),
    *((server.app, line) for line in SERVER),
    *((worker.app, line) for line in WORKER),
    *((admin_cli.app, line) for line in ADMIN),
]


def bound(app: cyclopts.App, line: str) -> dict[str, Any]:
    _, arguments, _ = app.parse_args(shlex.split(line), exit_on_error=False, print_error=False)
    return arguments.arguments


@every_row(("app", "line"), LINES)
def test_the_line_is_understood(app: cyclopts.App, line: str) -> None:
    given = len([word for word in shlex.split(line) if word.startswith("--")])
    assert len(bound(app, line)) >= min(given, 1)


def test_filters_of_both_lists_are_the_same_and_reach_the_command() -> None:
    options = "--status FAILED --flow f --tag t --full --limit 5"
    both = [bound(client.app, f"{command} {options}")["filters"] for command in ("list", "list-vnext")]
    assert both[0] == both[1]
    assert (both[0].status, both[0].full, both[0].limit) == ("FAILED", True, 5)


@pytest.mark.parametrize("option", ["--server", "--api-key", "--api-key-header"])
def test_the_options_of_all_commands_are_known(option: str) -> None:
    _, arguments, _ = client.app.meta.parse_args([option, "x", "metrics"], exit_on_error=False)
    assert arguments.kwargs == {option[2:].replace("-", "_"): "x"}
    assert arguments.args == ("metrics",)


# Every command that prints a result


def leaves(app: cyclopts.App, prefix: str = "") -> dict[str, cyclopts.App]:
    found: dict[str, cyclopts.App] = {}
    for name in app:
        if not name.startswith("-"):
            inner = leaves(app[name], f"{prefix}{name} ")
            found |= inner or {f"{prefix}{name}": app[name]}
    return found


WITHOUT_OUTPUT = {"metrics", "up", "demo", "mcp", "openapi", "value"}
"""Prometheus text, programs that stay, and one JSON document."""
COMMANDS = {
    f"{app.name[0]} {name}": command
    for app in (client.app, server.app, admin_cli.app)
    for name, command in leaves(app).items()
    if name not in WITHOUT_OUTPUT
}


@every_row("name", COMMANDS)
def test_every_command_that_prints_a_result_has_its_output_chosen(name: str) -> None:
    options = {
        option for argument in COMMANDS[name].assemble_argument_collection() for option in argument.names
    }
    assert "--output" in options
    assert {"--quiet", "-q"} <= options or name == "pyoco-client logs"


@every_row("name", COMMANDS)
def test_what_is_required_may_be_given_by_place_or_by_name(name: str) -> None:
    required = [a for a in COMMANDS[name].assemble_argument_collection() if a.required and a.parse]
    by_place = [a for a in required if a.field_info.is_positional]
    assert required == by_place or name == "pyoco-client submit-yaml"
