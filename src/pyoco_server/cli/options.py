"""Kinds of options that several commands have."""

from typing import Annotated, Literal

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="")]
Output = Literal["json", "table"]
