"""The tasks of a flow: their functions are prepared, and what they raise is put into words.

`async def` tasks are awaited in an event loop of their run. A child of `os.fork()` is a copy of the whole
executor: if it returned from its task, it would continue with the next task and report a second end of the
run. So every function is wrapped, and the wrapper ends a forked process as Python ends a program. Signatures
are computed once, because pyoco reads them on every run.
"""

import asyncio
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import wraps
from types import BuiltinFunctionType, CoroutineType, FunctionType
from typing import Any, NoReturn, Self

from pyoco.core.models import Flow, Task

from pyoco_server.domain.runs.jobs import Raised
from pyoco_server.domain.secrets.masking import NO_MASKS, Masks
from pyoco_server.domain.value_previews import json_text
from pyoco_server.engine.print_capture import speaks_for
from pyoco_server.errors import ExecutionFailed
from pyoco_server.logs import exception_fields

# Async tasks

_here = threading.local()
"""`loop`: that of the run to which the thread belongs."""


class RunLoop:
    """One event loop per run, created for its first async task and closed at its end.

    The tasks of a chain run in one thread, which also runs the loop. Tasks in pyoco's thread pool share a
    loop in a separate thread, so that one task can use what another has opened.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None
        self._home = 0

    def __enter__(self) -> Self:
        self._home = threading.get_ident()
        entered_loop(self)
        return self

    def __exit__(self, *_: object) -> None:
        entered_loop(None)
        if self._runner is None:
            return
        if self._thread is not None:
            loop = self._runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
        self._runner.close()

    def complete(self, work: Coroutine[Any, Any, Any]) -> Any:
        if threading.get_ident() == self._home:
            return self._opened().run(work)
        with self._lock:
            loop = self._opened().get_loop()
            if self._thread is None:
                self._thread = threading.Thread(target=_run_forever, args=[loop], name="pyoco-async")
                self._thread.start()
        speaks_for.set(threading.get_ident())
        return asyncio.run_coroutine_threadsafe(_contained(work), loop).result()()

    def _opened(self) -> asyncio.Runner:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner


def entered_loop(loop: RunLoop | None) -> None:
    """The calling thread is in a task of that run from now on."""
    _here.loop = loop


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of a callable object
    )


def awaited(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    """A function that awaits `function` and returns its result."""

    def call(**inputs: Any) -> Any:
        loop: RunLoop = _here.loop
        return loop.complete(function(**inputs))

    call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    call.__name__ = getattr(function, "__name__", "call")
    return call


def is_never_awaited(value: Any) -> bool:
    """A coroutine that a task returned and nobody has awaited."""
    return type(value) is CoroutineType and inspect.getcoroutinestate(value) == inspect.CORO_CREATED


def close_never_awaited(values: Iterable[Any]) -> None:
    """The run has failed because of it; Python's warning would add nothing."""
    for value in values:
        if is_never_awaited(value):
            value.close()


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


async def _contained(work: Coroutine[Any, Any, Any]) -> Callable[[], Any]:
    """Keep a SystemExit from ending the loop of the other tasks: it is raised by the returned function."""
    try:
        result = await work
    except (SystemExit, KeyboardInterrupt) as error:
        raised = error
    else:
        return lambda: result

    def fail() -> Any:
        raise raised

    return fail


# Processes that a task forks

_getpid = os.getpid
_exit = os._exit
_MARK = "__pyoco_server_ends_forks__"


def end_forks_with_their_task(flow: Flow) -> None:
    """Once per function: a task object is used again by the next run."""
    for task in flow.tasks:
        if not hasattr(task.func, _MARK) and not _only_makes_an_object(task.func):
            task.func = _ending_forks(task.func)


def _only_makes_an_object(function: Callable[..., Any]) -> bool:
    """Coroutine and generator functions must stay recognisable; builtins have no signature to keep."""
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

    if "__signature__" in vars(call):  # copied; `inspect.signature` would look behind it, on every run
        del call.__wrapped__
    setattr(call, _MARK, True)
    return call


def end_fork(error: BaseException | None = None) -> NoReturn:
    """Exit with the code of a Python program."""
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


# Preparation of a flow


def prepare_tasks(flow: Flow) -> None:
    """Before a flow runs. Raises ExecutionFailed for a function that cannot be a task."""
    for task in flow.tasks:
        function = task.func
        if type(function) is not FunctionType or "__signature__" not in function.__dict__:
            _prepare(task)


def check_tasks(flow: Flow) -> None:
    """When a flow is loaded. Raises ExecutionFailed."""
    for task in flow.tasks:
        if problem := _problem_with(task):
            raise ExecutionFailed(problem)


def _prepare(task: Task) -> None:
    """`inspect.signature` takes longer than a tiny task, unless the function has `__signature__`."""
    if problem := _problem_with(task):
        raise ExecutionFailed(problem)
    if is_async(task.func):
        task.func = awaited(task.func)
    elif type(task.func) is FunctionType:
        task.func.__signature__ = inspect.signature(task.func)  # type: ignore[attr-defined]


def has_timeout(task: Task) -> bool:
    return isinstance(task.timeout_sec, (int, float)) and task.timeout_sec > 0


def _problem_with(task: Task) -> str | None:
    """Calling a generator function runs nothing."""
    for function in (task.func, getattr(task.func, "__call__", None)):  # noqa: B004 - of a callable object
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            kind = "an async generator" if inspect.isasyncgenfunction(function) else "a generator"
            return f"task {task.name!r} is {kind} function (it has a yield): return a list instead"
    return None


# Texts of what users' code raised

MAX_TEXT = 32_768
"""Most characters of an error or a traceback; longer ones are cut in the middle."""


def capped_text(text: Any, masks: Masks = NO_MASKS) -> str | None:
    """A long text without its middle. Secrets are masked first: no half of one may be left."""
    if text is None:
        return None
    whole = masks.text(str(text))
    if len(whole) <= MAX_TEXT:
        return json_text(whole)
    half = MAX_TEXT // 2
    left_out = f"\n… ({len(whole) - 2 * half:,} characters left out) …\n"
    return json_text(whole[:half] + left_out + whole[-half:])


def described(error: BaseException, masks: Masks = NO_MASKS) -> str:
    """Type and text of an exception, even if its text cannot be made."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - a user's __str__ may do anything
        text = f"(its text raised {type(failure).__name__})"
    return capped_text(f"{type(error).__name__}: {text}", masks) or ""


def raised(error: BaseException, masks: Masks = NO_MASKS) -> Raised:
    """An exception of users' code, as the worker logs it."""
    fields: dict[str, Any] = {
        name: capped_text(text, masks) for name, text in exception_fields(error).items()
    }
    return Raised(**fields)
