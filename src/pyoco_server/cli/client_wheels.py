"""The commands about wheels."""

import zipfile
from pathlib import Path
from typing import Any, Literal

from pyoco_server.cli.client_output import Client, Output, note, print_json, print_table
from pyoco_server.domain.wheels import read_tags
from pyoco_server.errors import InvalidCliInput, InvalidRequest
from pyoco_server.usecases.wheel_files import check_wheel

_COLUMNS = ("name", "size_bytes", "tags", "modified", "sha256_hex")


def wheels(*, output: Output = "json", client: Client) -> None:
    """Print the registered wheels.

    Parameters
    ----------
    output
        json for programs, table for people.
    """
    found: Any = client.list_wheels()
    if output == "json":
        print_json(found)
    else:
        print_table(found, _COLUMNS)


def wheel_history(
    *,
    limit: int = 100,
    wheel_name: str | None = None,
    action: Literal["upload", "delete"] | None = None,
    client: Client,
) -> None:
    """Print who registered and removed what, newest first.

    Parameters
    ----------
    limit
        At most so many (up to 500).
    wheel_name
        Only of this wheel.
    action
        Only uploads, or only deletions.
    """
    print_json(client.list_wheel_history(limit, wheel_name, action))


def wheel_upload(*, wheel_file: Path, tags: str = "", replace: bool = True, client: Client) -> None:
    """Check a wheel and register it for workers.

    Parameters
    ----------
    wheel_file
        The file, e.g. dist/my_flows-1.0-py3-none-any.whl.
    tags
        For workers with one of these tags, e.g. cpu,linux; none: for all.
    replace
        Kept for older scripts: the version decides what can be registered.
    """
    _check(wheel_file)
    try:
        wanted = read_tags(tags)
    except InvalidRequest as error:
        raise InvalidCliInput(f"--tags: {error.detail}") from error
    print_json(client.upload_wheel(wheel_file, wanted, replace=replace))


def wheel_delete(*, name: str, client: Client) -> None:
    """Remove a wheel: workers drop it at their next sync.

    Parameters
    ----------
    name
        The wheel, e.g. my_flows-1.0-py3-none-any.whl.
    """
    print_json(client.delete_wheel(name))


def _check(path: Path) -> None:
    """What the server would refuse is refused here, before anything is sent."""
    if not path.is_file():
        raise InvalidCliInput(
            f"--wheel-file {path}: there is no such file; build one with: python -m build --wheel"
        )
    with path.open("rb") as file:
        try:
            check_wheel(path.name, file, path.stat().st_size)
        except InvalidRequest as error:
            raise InvalidCliInput(f"--wheel-file {path}: {error.detail}") from error
    if "pyoco.tasks" not in _entry_points(path):
        note(
            "note: the wheel has no entry point group pyoco.tasks; its code can be named in a flow.yaml "
            "(tasks.*.callable), but brings no tasks by itself"
        )


def _entry_points(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt")]
        return archive.read(names[0]).decode(errors="replace") if names else ""


COMMANDS = {
    "wheels": wheels,
    "wheel-history": wheel_history,
    "wheel-upload": wheel_upload,
    "wheel-delete": wheel_delete,
}
