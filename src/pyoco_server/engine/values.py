"""The values of a run on their way out of its process: results as JSON, records within a size limit."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.executions.interpolation import kind_of
from pyoco_server.domain.large_values import Step, with_value, written_place
from pyoco_server.domain.runs.jobs import ParamFile, ValueFile
from pyoco_server.domain.secrets.masking import NO_MASKS, Masks
from pyoco_server.domain.value_previews import json_text
from pyoco_server.domain.values import (
    WORST_GROWTH,
    Converted,
    NotJson,
    TooLarge,
    bounded_warnings,
    marked,
    plain_size,
    to_json,
    to_preview,
)

MAX_VALUE_BYTES = 262_144
"""Limit of a result, and of the values in all records; a snapshot holds no more by default."""


class Result(Struct, frozen=True, kw_only=True):
    value: dict[str, Any] | None = None
    is_truncated: bool = False
    files: tuple[ValueFile, ...] = ()
    warnings: tuple[str, ...] = ()


def with_files(params: dict[str, Any], files: Iterable[ParamFile]) -> dict[str, Any]:
    """The params with the stored values in place of references to them. Raises BadParams."""
    for file in files:
        name = written_place(("params", *file.place))
        try:
            value = msgspec.json.decode(Path(file.path).read_bytes())
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise BadParams(f"{name}: a large value cannot be read: {error}") from error
        params = with_value(params, file.place, _part_of(value, file.part, name))
    return params


def _part_of(value: Any, part: tuple[Step, ...], name: str) -> Any:
    for index, step in enumerate(part):
        try:
            value = value[step]
        except (LookupError, TypeError):
            found = "".join(map(_written, part[:index]))
            raise BadParams(
                f"{name}: there is no {_written(step)} in {kind_of(value)} at {found or 'the top'} "
                "of the large value"
            ) from None
    return value


def _written(step: Step) -> str:
    return f"[{step}]" if isinstance(step, int) else f".{step[:64]}"


class BadParams(Exception):
    """A large value in params cannot be used."""


class ValueRoom(Struct, frozen=True, kw_only=True):
    """How much a run may return, and where: small values in its snapshot, larger ones in files."""

    snapshot_bytes: int = MAX_VALUE_BYTES
    """Limit for the values in the snapshot, inputs and outputs of tasks included."""
    inline_bytes: int = MAX_VALUE_BYTES
    """A value with more JSON goes to a file."""
    value_bytes: int = MAX_VALUE_BYTES
    """Limit for each value."""
    directory: str = ""
    """Of the files; empty: there are none."""
    run_id: str = ""

    def of(self, run_id: str, *, is_node: bool) -> "ValueRoom":
        """More of a node's output stays in the snapshot: the next nodes read it there."""
        inline = self.snapshot_bytes if is_node else self.inline_bytes
        inline = min(inline, self.snapshot_bytes // 2)
        return replace(self, inline_bytes=inline, run_id=run_id)

    def write(self, task: str, data: bytes) -> ValueFile:
        """Raises OSError, e.g. if the disk is full."""
        descriptor, path = tempfile.mkstemp(prefix=f"{self.run_id}.", dir=self.directory)
        os.close(descriptor)
        try:
            Path(path).write_bytes(data)
        except OSError:
            Path(path).unlink()
            raise
        return ValueFile(task, path, len(data))


class BadOutput(Exception):
    """A task returned a value that cannot be a result."""

    def __init__(self, task: str, problem: str) -> None:
        super().__init__(problem)
        self.task = task
        self.problem = problem


def result_of(outputs: dict[str, Any], room: ValueRoom, masks: Masks = NO_MASKS) -> Result:
    """The outputs of a flow's last tasks as JSON values. Raises BadOutput."""
    taking = _Taking(room, masks)
    for task, output in outputs.items():
        try:
            taking.take(task, output)
        except (TooLarge, OSError) as error:
            taking.discard_files()
            return taking.result(None, taking.refusal(task, error))
    return taking.result(taking.found)


class _Taking:
    """The outputs of the last tasks, one by one."""

    def __init__(self, room: ValueRoom, masks: Masks) -> None:
        self._room = room
        self._masks = masks
        self._left = room.inline_bytes if room.directory else room.snapshot_bytes
        self._files: list[ValueFile] = []
        self._warnings: list[str] = []
        self._unlisted = 0
        self.found: dict[str, Any] = {}

    def take(self, task: str, output: Any) -> None:
        """Raises TooLarge, BadOutput or OSError."""
        room = self._room
        converted = _output(task, output, room.value_bytes if room.directory else self._left)
        value = self._masks.value(converted.value) if self._masks else converted.value
        size = least_size = converted.size
        if room.directory and least_size * WORST_GROWTH > self._left:
            data = msgspec.json.encode(value)
            size = len(data)
            if size > self._left:
                self._files.append(room.write(task, data))
                value, size = None, 0
        self.found[task] = value
        self._left -= size
        self._warnings += [f"task {task!r} returned {null}: null instead" for null in converted.nulls]
        self._unlisted += converted.null_count - len(converted.nulls)

    def refusal(self, task: str, error: TooLarge | OSError) -> str:
        if isinstance(error, OSError):
            return f"the large output of task {task!r} could not be written to a file: {error.strerror}"
        if not self._room.directory:
            most = self._room.snapshot_bytes
            return f"the result has {error.text} as JSON; at most {most:,} bytes are kept"
        return (
            f"task {task!r} returned {error.text} of JSON; at most {self._room.value_bytes:,} bytes are kept "
            "(PYOCO_VALUE_MAX_BYTES)"
        )

    def discard_files(self) -> None:
        for file in self._files:
            Path(file.path).unlink(missing_ok=True)
        self._files.clear()

    def result(self, value: dict[str, Any] | None, *first: str) -> Result:
        return Result(
            value=value,
            is_truncated=value is None,
            files=tuple(self._files),
            warnings=bounded_warnings([*first, *self._warnings], self._unlisted),
        )


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
