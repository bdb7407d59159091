"""The `pyoco-client` command of the thin client: all commands, without further packages.

With the extra `terminal` it is the command of pyoco-server, with live views, colours, completion, YAML files
and Japanese texts. The commands here have the same names, options and exit codes there.
"""

import json
import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from pyoco_client.commands import FAILED, Command, InvalidInput, RunGoesOn, note, secret
from pyoco_client.table import COMMANDS, GROUPS
from pyoco_server.http_client import PyocoError, PyocoHttpClient, RunError
from pyoco_server.http_client.calls import text_of

__all__ = ["COMMANDS", "main", "parser", "run"]

DEFAULT_SERVER = "http://127.0.0.1:8000"
TERMINAL_PACKAGES = ("cyclopts", "dotenv", "packaging", "rich", "yaml")
TERMINAL = (
    "Live views, colours, completion, YAML files and Japanese texts: pip install 'pyoco-client[terminal]'"
)
INTERRUPTED = 130


def main() -> None:
    if all(find_spec(name) for name in TERMINAL_PACKAGES):
        from pyoco_server.cli.client import main as in_a_terminal  # noqa: PLC0415 - needs these packages

        in_a_terminal()
        return
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()  # here, because the interpreter reports a failure at its end
    except BrokenPipeError:  # as in `pyoco-client list | head`: nobody needs the rest
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        code = FAILED
    sys.exit(code)


def run(arguments: list[str]) -> int:
    wants_json = not {"--json", "--output=json"}.isdisjoint(arguments) or ("--output", "json") in pairwise(
        arguments
    )
    try:
        return _run(parser().parse_args(arguments), wants_json=wants_json)
    except InvalidInput as error:
        _fail(
            wants_json,
            err_id="ERR-PYOCO-0018",
            msg_id="MSG-PYOCO-0018",
            detail=str(error),
            advice=error.advice,
        )
    except PyocoError as error:
        _fail(wants_json, **_facts(error))
    except RunGoesOn as interrupt:
        _fail(wants_json, err_id=None, **interrupt.facts)
        return INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED


def _facts(error: PyocoError) -> dict[str, Any]:
    """`path`: the file that was not applied."""
    known = {name: getattr(error, name) for name in ("status", "err_id", "detail", "advice")}
    more = {"run_id": error.run_id, "path": vars(error).get("path")}
    if isinstance(error, RunError):
        more["run_status"] = error.run["status"]
    return {**known, **{name: value for name, value in more.items() if value is not None}}


def _run(given: Namespace, *, wants_json: bool) -> int:
    command = COMMANDS[given.command]
    required = [option for option in command.options if option.is_required]
    missing = [option.label for option in required if getattr(given, option.dest, None) is None]
    if missing:
        example = " ".join(["pyoco-client", given.command, *(option.example for option in required)])
        advice = f"Example:  {example}\nUsage:    pyoco-client {given.command} --help"
        raise InvalidInput(f"{missing[0]} is missing", advice)
    given.has_progress = not (wants_json or getattr(given, "quiet", False))
    with PyocoHttpClient(
        _url(given.server), given.api_key or secret("PYOCO_API_KEY"), given.api_key_header
    ) as client:
        return command.function(client, given) or 0


def _fail(wants_json: bool, **facts: Any) -> None:  # noqa: FBT001
    """The reason and advice on stderr; with `--output json` as one JSON object."""
    if wants_json:
        known = {"err_id": None, "status": None, "detail": None, "advice": None}
        print(json.dumps({"error": {**known, **facts}}), file=sys.stderr)
        return
    if "path" in facts:
        note(f"{facts['path']}: not applied")
    shown = text_of(facts["detail"])
    status = "" if facts.get("status") is None else f"HTTP {facts['status']}"
    words = (status, facts["err_id"], facts.get("msg_id"), shown)
    note(" ".join(word for word in words if word), *(facts["advice"] or "").splitlines())


def _url(given: str | None) -> str:
    wanted = given or os.environ.get("PYOCO_SERVER_URL") or _server_here() or DEFAULT_SERVER
    return (wanted if "://" in wanted else f"http://{wanted}").rstrip("/")


def _server_here() -> str | None:
    """The server started in this directory. It holds a lock on its file while it runs."""
    if sys.platform == "win32":  # where only clients run
        return None
    import fcntl  # noqa: PLC0415

    try:
        with Path(".pyoco/server.json").open("rb") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return str(json.load(file)["http_url"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return None


# Arguments


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidInput(message, f"Usage:    {self.prog} --help")


def parser() -> ArgumentParser:
    whole = _Parser(
        prog="pyoco-client", description="Submit and inspect runs on a pyoco-server.", epilog=TERMINAL
    )
    _add_connection(whole, None, "X-API-Key")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    groups = {name: _group(commands, name, about) for name, about in GROUPS.items()}
    for name, command in COMMANDS.items():
        group, _, last = name.rpartition(" ")
        about = command.function.__doc__
        one = (groups[group] if group else commands).add_parser(last, help=about, description=about)
        _add_options(one, name, command)
    return whole


def _group(commands: Any, name: str, about: str) -> Any:
    """`pyoco-client executions` lists executions."""
    group = commands.add_parser(name, help=about, description=about)
    listed = COMMANDS.get(f"{name} list")
    if listed is not None:
        _add_options(group, f"{name} list", listed)
    return group.add_subparsers(required=listed is None, metavar="COMMAND")


def _add_options(parser: ArgumentParser, name: str, command: Command) -> None:
    parser.set_defaults(command=name)
    _add_connection(parser, SUPPRESS, SUPPRESS)  # before or after the command
    for option in command.options:
        option.add(parser)


def _add_connection(parser: ArgumentParser, default: Any, header: str) -> None:
    parser.add_argument(
        "--server",
        default=default,
        help="Server URL (also: PYOCO_SERVER_URL). Default: the server started in this directory, else "
        f"{DEFAULT_SERVER}",
    )
    parser.add_argument(
        "--api-key",
        default=default,
        help="API key for a server with authentication (also: PYOCO_API_KEY, PYOCO_API_KEY_FILE).",
    )
    parser.add_argument("--api-key-header", default=header, help="HTTP header for the API key.")
