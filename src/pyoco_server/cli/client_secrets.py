"""Commands for secrets and variables. A value is never an argument of a secret: others could read it."""

import getpass
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.output import AS_JSON, Client, Columns, Cursor, Flag, Limit, Shown
from pyoco_server.errors import InvalidCliInput

secrets_app = cyclopts.App(name="secrets", help="Keep secrets that params name as ${secrets.NAME}.")
variables_app = cyclopts.App(name="vars", help="Keep values that params name as ${vars.NAME}.")

_SECRETS = Columns(("name",), ("name", "created_at", "updated_at"), ("created_at",))
_VARIABLES = Columns(("name",), ("name", "value", "updated_at"), ("updated_at",))

Name = Annotated[str, Parameter(help="Name: [A-Za-z0-9_-]{1,64}.")]


@secrets_app.command(name="put")
def put_secret(name: Name, *, file: Path | None = None, shown: Shown = AS_JSON, client: Client) -> None:
    """Set a secret. Its value is read from the standard input, and never shown again.

    Parameters
    ----------
    file
        File with the value, instead of the standard input. One newline at its end is left out.
    """
    shown.one(client.secrets.put(name, _value(file, is_secret=True)), "name")


@secrets_app.command(name="list")
def list_secrets(
    *, cursor: Cursor = None, limit: Limit = None, shown: Shown = AS_JSON, client: Client
) -> None:
    """List secrets, newest first, without their values."""
    shown.page(client.secrets.list(cursor, limit), _SECRETS, texts.NO_SECRETS)


@secrets_app.command(name="show")
def show_secret(name: Name, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a secret without its value."""
    shown.one(client.secrets.get(name), "name")


@secrets_app.command(name="delete")
def delete_secret(name: Name, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete a secret. Runs that name it and start later fail."""
    shown.one(client.secrets.delete(name), "name")


@variables_app.command(name="put")
def put_variable(
    name: Name,
    *,
    value: str | None = None,
    file: Path | None = None,
    as_json: Flag = False,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Set a variable. Without --value or --file, its value is read from the standard input.

    Parameters
    ----------
    value
        The value.
    file
        File with the value. One newline at its end is left out.
    as_json
        The value is JSON, not text.
    """
    if value is not None and file is not None:
        raise InvalidCliInput("--value and --file exclude each other")
    text = _value(file, is_secret=False) if value is None else value
    shown.one(client.variables.put(name, _parsed(text) if as_json else text), "name")


@variables_app.command(name="list")
def list_variables(
    *, cursor: Cursor = None, limit: Limit = None, shown: Shown = AS_JSON, client: Client
) -> None:
    """List variables, newest first."""
    shown.page(client.variables.list(cursor, limit), _VARIABLES, texts.NO_VARIABLES)


@variables_app.command(name="show")
def show_variable(name: Name, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Print a variable."""
    shown.one(client.variables.get(name), "name")


@variables_app.command(name="delete")
def delete_variable(name: Name, *, shown: Shown = AS_JSON, client: Client) -> None:
    """Delete a variable. Runs that name it and start later fail."""
    shown.one(client.variables.delete(name), "name")


def _value(file: Path | None, *, is_secret: bool) -> str:
    """From a file, or the standard input; on a terminal a secret is typed without being shown."""
    try:
        if file is not None:
            text = file.read_text(encoding="utf-8")
        elif sys.stdin.isatty():
            text = getpass.getpass("value: ") if is_secret else input("value: ")
        else:
            text = sys.stdin.read()
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise InvalidCliInput(f"the value cannot be read: {type(error).__name__}") from error
    text = text.removesuffix("\n").removesuffix("\r")
    if is_secret and not text:
        raise InvalidCliInput("the value is empty")
    return text


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidCliInput(f"the value is not JSON: {error}") from error
