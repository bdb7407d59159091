"""Values of users' tasks as they leave their process: results as JSON, records within a size limit."""

from typing import Any

from msgspec import Struct

from pyoco_server.domain.runs.jobs import Raised
from pyoco_server.domain.value_previews import json_text
from pyoco_server.domain.values import (
    Converted,
    NotJson,
    TooLarge,
    bounded_warnings,
    marked,
    plain_size,
    to_json,
    to_preview,
)
from pyoco_server.logs import exception_fields

MAX_TEXT = 32_768
"""Most characters of an error or a traceback; longer ones are cut in the middle."""
MAX_VALUE_BYTES = 262_144
"""Limit of a result, and of the values in all records; a snapshot holds no more by default."""


class Result(Struct, frozen=True, kw_only=True):
    value: dict[str, Any] | None = None
    is_truncated: bool = False
    warnings: tuple[str, ...] = ()


class BadOutput(Exception):
    """A task returned a value that cannot be a result."""

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(problem)
        self.task = task
        self.problem = problem


def result_of(outputs: dict[str, Any], max_bytes: int) -> Result:
    """The outputs of a flow's last tasks as JSON values. Raises BadOutput."""
    found: dict[str, Any] = {}
    warnings: list[str] = []
    size = unlisted = 0
    for task, output in outputs.items():
        try:
            converted = _output(task, output, max_bytes - size)
        except TooLarge as error:
            text = f"the result has {error.text} as JSON; at most {max_bytes:,} bytes are kept"
            return Result(is_truncated=True, warnings=bounded_warnings([text, *warnings], unlisted))
        found[task] = converted.value
        size += converted.size
        warnings += [f"task {task!r} returned {null}: null instead" for null in converted.nulls]
        unlisted += converted.null_count - len(converted.nulls)
    return Result(value=found, warnings=bounded_warnings(warnings, unlisted))


def _output(task: str, output: Any, max_bytes: int) -> Converted:
    try:
        return to_json(output, "output", max_bytes)
    except NotJson as error:
        problem = f"task {task!r} returned {error.what} at {error.place}: not JSON; {error.advice}"
        raise BadOutput(task, json_text(problem)) from None


RecordValues = tuple[dict[str, Any] | None, Any, dict[str, Any] | None]
"""Inputs, output and artifacts of a task."""


class RecordBudget:
    """The size limit for the values in all task records of a run."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._used: dict[str, int] = {}
        self.is_exceeded = False
        """A value was too large and was replaced by a marker."""

    def values_of(self, task: str, inputs: Any, output: Any, artifacts: Any) -> RecordValues:
        before = self._left = self._left + self._used.get(task, 0)
        values = self._object(inputs), self._shown(output), self._object(artifacts)
        self._used[task] = before - self._left
        return values

    def _object(self, values: Any) -> dict[str, Any] | None:
        if type(values) is not dict:
            return None
        if not values:
            return {}
        return {json_text(str(name)): self._shown(value) for name, value in list(values.items())}

    def _shown(self, value: Any) -> Any:
        size = plain_size(value)
        if size is not None and size <= self._left:
            self._left -= size
            return value
        preview = to_preview(value, self._left)
        if preview is None:
            self.is_exceeded = True
            return marked(value, is_large=True)
        self._left -= preview.size
        return preview.value


def is_exact(value: Any, stored: Any) -> bool:
    """Whether `stored`, read again, is the value itself and not a preview or another type."""
    if value is stored:
        return True
    if type(value) is not type(stored):
        return False
    if isinstance(value, list):
        return len(value) == len(stored) and all(map(is_exact, value, stored))
    if isinstance(value, dict):
        return value.keys() == stored.keys() and all(is_exact(value[key], stored[key]) for key in stored)
    return bool(value == stored)


def capped_text(text: Any) -> str | None:
    """A long text without its middle."""
    if text is None:
        return None
    whole = str(text)
    if len(whole) <= MAX_TEXT:
        return json_text(whole)
    half = MAX_TEXT // 2
    left_out = f"\n… ({len(whole) - 2 * half:,} characters left out) …\n"
    return json_text(whole[:half] + left_out + whole[-half:])


def described(error: BaseException) -> str:
    """Type and text of an exception, even if its text cannot be made."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - a user's __str__ may do anything
        text = f"(its text raised {type(failure).__name__})"
    return capped_text(f"{type(error).__name__}: {text}") or ""


def raised(error: BaseException) -> Raised:
    """An exception of users' code, as the worker logs it."""
    fields: dict[str, Any] = {name: capped_text(text) for name, text in exception_fields(error).items()}
    return Raised(**fields)
