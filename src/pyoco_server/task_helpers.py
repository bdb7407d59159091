"""What a task can do with its server. Flows import these names from `pyoco_server`.

Without a server, as in a test of a flow, they do nothing harmful. This module imports nothing of the server,
so that the import costs a flow next to nothing.
"""

import errno
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from os import PathLike
from stat import S_ISREG
from typing import Any, Protocol

LEVELS = ("debug", "info", "warning", "error", "critical")
MAX_MESSAGE = 500
"""Characters of a progress message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRun:
    """The run that the calling task belongs to."""

    run_id: str
    flow_name: str
    tag: str
    task: str | None
    """None: several tasks run, and the calling thread is in none of them."""
    params: Mapping[str, Any] = field(repr=False)
    attempt: int
    """Delivery of the job: above 1 after a lost worker."""
    try_number: int
    """Above 1 if the run is retried after a failure."""
    execution_id: str | None
    node_id: str | None
    parent_run_id: str | None
    """The run whose task has submitted this one."""
    deadline: float | None
    """Unix time at which the run or its task times out."""
    _host: "TaskHost" = field(repr=False, compare=False)

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is to stop, now."""
        return self._host.is_cancelled


class TaskHost(Protocol):
    """The run in the process that runs its tasks."""

    pid: int

    @property
    def is_cancelled(self) -> bool: ...
    @property
    def is_foreign(self) -> bool:
        """Whether the calling thread is older than the run."""
        ...

    def current(self) -> CurrentRun: ...
    def advance(self, value: float | None, message: str | None) -> None: ...
    def log(self, text: str, level: str, fields: Mapping[str, Any]) -> None: ...
    def submit(self, flow_name: str, params: Mapping[str, Any], key: str | None, **options: Any) -> str: ...
    def save(self, name: str, content: bytes | str, media_type: str) -> None: ...


entered: ContextVar[TaskHost | None] = ContextVar("pyoco_task_host", default=None)
"""The run that the calling context is in."""
hosts: list[TaskHost] = []
"""The runs of this process: one in an executor, one per worker in other programs."""


def progress(value: float | None, message: str | None = None) -> None:
    """Show how far the run is: from 0 to 1, or None with a message alone."""
    if value is not None:
        value = float(value)
        if math.isnan(value):
            raise ValueError("progress: not a number")
        value = min(1.0, max(0.0, value))
    if message is not None:
        message = str(message)[:MAX_MESSAGE]
    if (host := _host()) is not None:
        host.advance(value, message)


def log(text: str, /, *, level: str = "info", **fields: Any) -> None:
    """Add a line with a level and fields to the log of the run; without a server, to `logging`."""
    name = level.lower()
    if name not in LEVELS:
        raise ValueError(f"log: level {level!r} is none of {', '.join(LEVELS)}")
    host = _host()
    if host is not None:
        host.log(str(text), name, fields)
        return
    line = " ".join([str(text), *(f"{key}={value!r}" for key, value in fields.items())])
    logging.getLogger("pyoco_server.task").log(getattr(logging, name.upper()), "%s", line)


def current_run() -> CurrentRun | None:
    """The run of the calling task; None outside of a run."""
    host = _host()
    return None if host is None else host.current()


def submit(  # noqa: PLR0913 - the options of a run
    flow_name: str,
    params: Mapping[str, Any] | None = None,
    *,
    tag: str | None = None,
    tags: Sequence[str] | None = None,
    key: str | None = None,
    priority: str | None = None,
    delay_sec: float | None = None,
    timeout_sec: float | None = None,
) -> str:
    """Start a run, linked to this one by `parent_run_id`; returns its id. `tag`: default that of this run.

    A run starts each child once, however often it is delivered or tried: the same request of a task is the
    same child, and its n-th repetition the n-th one. `key` names a child whose params may differ then.
    Raises RuntimeError outside of a run, and if the run is refused; ValueError for params that are not JSON.
    """
    host = _host()
    if host is None:
        raise RuntimeError(f"submit({flow_name!r}) works in a task of a run only")
    options = {
        "tag": tag,
        "tags": tags,
        "priority": priority,
        "delay_sec": delay_sec,
        "timeout_sec": timeout_sec,
    }
    return host.submit(flow_name, params or {}, key, **options)


class artifact:  # noqa: N801 - used as `artifact.save(…)`
    """Files that are kept with the run."""

    @staticmethod
    def save(name: str, content: bytes | str | PathLike[str], *, type: str | None = None) -> None:  # noqa: A002
        """Save bytes, or the file at a path, under a name; a second one with the name replaces the first.

        `type`: media type; default: by the name. Returns when it is stored. Raises ValueError for a bad name
        or type, OSError for a file that cannot be read, RuntimeError if a quota is exceeded. Outside of a
        run nothing is saved.
        """
        from mimetypes import guess_type  # noqa: PLC0415 - not for every import

        from pyoco_server.domain.artifacts import problem_with  # noqa: PLC0415

        media_type = type or guess_type(name)[0] or "application/octet-stream"
        problem = problem_with(name, media_type)
        if problem is not None:
            raise ValueError(f"artifact.save: {problem}")
        if not isinstance(content, (str, PathLike)):
            content = bytes(memoryview(content))
        else:
            content = os.path.abspath(content)  # noqa: PTH100 - cheap
            _require_file(content)
        if (host := _host()) is not None:
            host.save(name, content, media_type)


def _require_file(path: str) -> None:
    """Raises OSError. A pipe or a device may have no end."""
    if not S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - cheap
        raise OSError(errno.EINVAL, "artifact.save: not a file", path)
    with open(path, "rb"):  # noqa: PTH123
        """It can be read."""


def _host() -> TaskHost | None:
    """A forked process is not in the run: it cannot reach the worker."""
    found = entered.get()
    if found is None and len(hosts) == 1 and not hosts[0].is_foreign:
        found = hosts[0]  # a thread that the task has started
    return found if found in hosts and found.pid == os.getpid() else None
