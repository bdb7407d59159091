"""Tasks that fork: the child ends where the task's function ends, and never runs on inside the engine.

A child of `os.fork()` is a copy of the whole executor. If it returned from its task it would go on with the
next task, report a second end of the run and wait for the next job. So every task's function is wrapped: in
another process than the one that called it, the wrapper ends that process as Python ends a program.
"""

import inspect
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from types import BuiltinFunctionType
from typing import Any, NoReturn

from pyoco.core.models import Flow

_getpid = os.getpid
_exit = os._exit
_MARK = "__pyoco_server_ends_forks__"


def end_forks_with_their_task(flow: Flow) -> None:
    """Once per function: a task object is used again by the next run."""
    for task in flow.tasks:
        if not hasattr(task.func, _MARK) and not _only_makes_an_object(task.func):
            task.func = _ending_forks(task.func)


def _only_makes_an_object(function: Callable[..., Any]) -> bool:
    """A coroutine or a generator, which others have to recognise; builtins have no signature to keep."""
    return isinstance(function, BuiltinFunctionType) or bool(
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


def _ending_forks(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        pid = _getpid()
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            if _getpid() != pid:
                end_fork(error)
            raise
        if _getpid() != pid:
            end_fork()
        return result

    setattr(call, _MARK, True)
    return call


def end_fork(error: BaseException | None = None) -> NoReturn:
    """End this process, with the exit code that a Python program would have."""
    code = 1
    try:
        code = _exit_code(error)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
    finally:
        _exit(code)


def _exit_code(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        return (error.code or 0) & 0xFF
    text = (
        str(error.code) + "\n"
        if isinstance(error, SystemExit)
        else "".join(traceback.format_exception(error))
    )
    os.write(2, text.encode("utf-8", "backslashreplace"))
    return 1
