"""What commands share: params and times of runs, waiting for their end, pauses, definitions in files.

Params come from a file, a JSON text and key=value pairs; later sources override earlier ones.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from cyclopts import Parameter

from pyoco_server.cli import Text, client_texts as texts
from pyoco_server.cli.output import Flag
from pyoco_server.domain.inputs import Refused, decode_json, read_json
from pyoco_server.domain.strict_yaml import YamlKind, decode, read_yaml
from pyoco_server.errors import InvalidCliInput, InvalidRequest
from pyoco_server.http_client.options import RunOptions, options_of

T = TypeVar("T")

MAX_NODES = 100_000
"""Limit for a YAML file; above the limit for the params of a run."""


def read_params(file: Path | None, text: str | None, single: Sequence[str]) -> dict[str, Any]:
    return {**_from_file(file), **_from_json(text), **dict(map(_from_pair, single))}


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    return read_document(path, f"--params-file {path}")


def read_document(path: Path, where: str) -> dict[str, Any]:
    """An object in a file, YAML or JSON."""
    kind = YamlKind(name=where, max_nodes=MAX_NODES, text_keys=frozenset({"on"}))  # alerts have `on`
    try:
        text = decode(path.read_bytes(), kind).removeprefix("\ufeff")
        value = read_json(text, where) if _is_json(text) else read_yaml(text, kind).value
    except OSError as error:
        raise InvalidCliInput(texts.PARAMS_FILE_UNREADABLE(path=path, reason=error.strerror)) from error
    except InvalidRequest as error:
        raise InvalidCliInput(error.detail) from error
    return _object(value, where)


def _is_json(text: str) -> bool:
    """YAML 1.1 parses some JSON differently: `1e5` is a string there."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _from_json(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        return _object(decode_json(text.encode()), "--params")
    except (Refused, UnicodeEncodeError) as error:
        raise InvalidCliInput(texts.PARAMS_NOT_JSON(reason=error, example=texts.PARAMS_EXAMPLE())) from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidCliInput(
            texts.PARAMS_NOT_OBJECT(where=where, kind=type(value).__name__, example=texts.PARAMS_EXAMPLE())
        )
    return value


def _from_pair(pair: str) -> tuple[str, Any]:
    """JSON where possible, else a string: `n=3` is a number, `name=me` a string."""
    key, separator, text = pair.partition("=")
    if not separator or not key:
        raise InvalidCliInput(texts.PARAM_NOT_PAIR(pair=pair))
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text


def listed(text: str) -> list[str]:
    """What is separated by commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


def put_definition(
    put: Callable[..., T], file: Path, needed: str, problem: Text, given: str | None, field: str = "name"
) -> T:
    """Create or change what a file defines, with a call of the client."""
    name, definition = _named_definition(file, needed, problem, given, field)
    try:
        return put(name, **definition)
    except TypeError as error:  # a field that the call does not have
        raise InvalidCliInput(f"{file}: {error}") from error


def _named_definition(
    file: Path, needed: str, problem: Text, given: str | None, field: str
) -> tuple[str, dict[str, Any]]:
    """The name and the definition without it: `given`, else `field` in the file, else the file's name."""
    if not file.is_file():
        raise InvalidCliInput(texts.NO_SUCH_FILE(path=file))
    definition = read_document(file, str(file))
    if needed not in definition:
        raise InvalidCliInput(problem(path=file))
    found = definition.pop(field, None)
    return str(given or found or file.stem), definition


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Timing:
    """When the run starts, how long it may take, how often it is tried, its priority."""

    at: str | None = None
    """Do not start before this time, e.g. 2026-12-01T02:00+09:00."""

    delay: str | None = None
    """Do not start before this time has passed, e.g. 90, 10m or 1h30m."""

    start_within: str | None = None
    """Fail if no worker has started the run in this time."""

    timeout: str | None = None
    """Timeout of each try, e.g. 1h."""

    retries: int | None = None
    """Try again up to this many times after a failure, with growing pauses."""

    priority: Literal["high", "normal", "low"] | None = None
    """Start before other runs that wait for the same tag (high), or after them (low)."""

    def options(self) -> RunOptions:
        try:
            return options_of(
                at=self.at,
                delay=self.delay,
                start_within=self.start_within,
                timeout=self.timeout,
                retries=self.retries,
                priority=self.priority,
            )
        except ValueError as error:
            raise InvalidCliInput(str(error)) from error


NOW = Timing()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Following:
    """Options for waiting for a submitted run."""

    wait: Flag = False
    """Wait until the run ends; exit code 0 if it completed."""

    timeout_sec: float | None = None
    """With --wait: timeout in seconds."""


NOT_FOLLOWED = Following()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Pause:
    """Options for a pause."""

    reason: str | None = None
    """Reason, shown with the runs that wait."""

    until: str | None = None
    """When the pause ends by itself, e.g. 2026-12-01T02:00+09:00. Default: when it is resumed."""


FOR_NOW = Pause()
