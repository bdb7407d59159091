"""Kinds of options that several commands have."""

import os
from typing import Annotated, Literal

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="")]
Many = Annotated[list[str] | None, Parameter(negative="")]
"""An option that may be repeated."""
Output = Annotated[Literal["json", "table"], Parameter(help="json for programs, table for people.")]

DEFAULT_SERVER = "http://127.0.0.1:8000"


def server_url(given: str | None) -> str:
    return (given or os.environ.get("PYOCO_SERVER_URL") or DEFAULT_SERVER).rstrip("/")
