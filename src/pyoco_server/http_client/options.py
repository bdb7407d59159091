"""Options of a run: when it starts, how long it may take, how often it is tried, its priority."""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from pyoco_server.http_client.calls import given

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


class RetryOptions(TypedDict, total=False):
    """When a failed try is followed by another. `max_attempts` counts all tries; default 1."""

    max_attempts: int
    backoff_sec: float
    factor: float
    max_backoff_sec: float
    jitter: float
    on: Sequence[str]


class RunOptions(TypedDict, total=False):
    """When a run starts, before which others, how often it is tried. A `datetime` must have a time zone."""

    run_at: float | str | datetime | None
    delay_sec: float | None
    start_within_sec: float | None
    timeout_sec: float | None
    retry: RetryOptions | None
    priority: Literal["high", "normal", "low"] | None


def fields_of(options: RunOptions) -> dict[str, Any]:
    fields: dict[str, Any] = given({**options})
    if isinstance(fields.get("run_at"), datetime):
        fields["run_at"] = fields["run_at"].isoformat()
    return fields


def form_fields_of(options: RunOptions) -> dict[str, str]:
    fields = fields_of(options)
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


def options_of(
    *,
    at: str | None = None,
    delay: str | None = None,
    start_within: str | None = None,
    timeout: str | None = None,
    retries: int | None = None,
    priority: Literal["high", "normal", "low"] | None = None,
) -> RunOptions:
    """From a command line. Raises ValueError."""
    options: RunOptions = {
        "run_at": at,
        "delay_sec": seconds_of("--delay", delay),
        "start_within_sec": seconds_of("--start-within", start_within),
        "timeout_sec": seconds_of("--timeout", timeout),
        "priority": priority,
    }
    if retries is not None:
        options["retry"] = {"max_attempts": retries + 1}
    return options


def seconds_of(option: str, text: str | None) -> float | None:
    """`90`, `10m`, `1h30m` or `2d` in seconds. Raises ValueError."""
    if text is None:
        return None
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{option} {text}: not a duration such as 90, 10m, 1h30m or 2d")
    return sum(float(number) * _UNITS[unit or "s"] for number, unit in parts)
