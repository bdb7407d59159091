"""Kinds of options that several commands have."""

import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from pyoco_server.running_server import DATA_DIRECTORY, running_server

Flag = Annotated[bool, Parameter(negative="")]
Many = Annotated[list[str] | None, Parameter(negative="")]
"""An option that may be repeated."""
Output = Annotated[Literal["json", "table"], Parameter(help="json for programs, table for people.")]

DEFAULT_SERVER = "http://127.0.0.1:8000"


def server_url(given: str | None, data_dir: Path = DATA_DIRECTORY) -> str:
    """As given, as set, that of the server of this directory, or the default."""
    wanted = given or os.environ.get("PYOCO_SERVER_URL")
    if wanted is None:
        found = running_server(data_dir)
        wanted = DEFAULT_SERVER if found is None else found.http_url
    return (wanted if "://" in wanted else f"http://{wanted}").rstrip("/")
