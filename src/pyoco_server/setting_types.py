"""What the text of a setting may be."""

from typing import Annotated

from msgspec import Meta

MAX_SECONDS = 9e9
"""JetStream stores durations as nanoseconds in 64 bits, so `inf` is not possible."""
Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]
SecondsOrNever = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Subject = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
"""A subject prefix: tokens without wildcards, because messages are published under it."""
ApiPrefix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_$-]+(\.[A-Za-z0-9_$-]+)*$")]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]+$")]
"""A stream or bucket name: JetStream allows no dots, wildcards or spaces."""
Modules = Annotated[str, Meta(pattern=r"^\s*([A-Za-z_][\w.]*\s*(,\s*[A-Za-z_][\w.]*\s*)*)?$")]
"""Names of Python modules or packages, separated by commas."""
EnvNames = Annotated[str, Meta(pattern=r"^\s*([A-Za-z_]\w*\s*(,\s*[A-Za-z_]\w*\s*)*)?$")]
"""Names of environment variables, separated by commas."""
Tags = Annotated[str, Meta(pattern=r"^\s*([A-Za-z0-9_-]{1,64}\s*(,\s*[A-Za-z0-9_-]{1,64}\s*)*)?$")]
Hosts = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.,:_\[\] -]*$")]
PortOrNone = Annotated[int, Meta(ge=0, le=65_535)]
Host = Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:_\[\]-]+$")]
Days = Annotated[int, Meta(ge=1, le=36_500)]
HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")]
