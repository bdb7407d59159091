"""Restores the state of an executor process after each run.

Each aspect is compared with its value after the flows were loaded, and restored if possible. What cannot be
restored (running threads and processes, lowered limits, replaced functions) is reported, and the executor is
replaced. Module globals of users' code are not touched: they are shared by design.

A check costs about 30 µs. It uses functions that were bound before the first run, because a task may replace
those of the modules.
"""

import _locale
import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which are slow
import _thread
import asyncio
import builtins
import gc
import inspect
import json
import locale
import logging
import operator
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pyoco_server.processes import child_processes

SETTLE_SEC = 0.05
"""How long threads and processes may take to end."""
MANY_DESCRIPTORS = 100
"""A run that leaves more open has a leak, which may break the next one."""

Aspect = tuple[str, Callable[[], Any], Callable[[Any], object]]
"""Name, reader, writer."""


class ProcessState:
    """The state of the process at construction."""

    def __init__(self) -> None:
        self._aspects = list(_aspects())
        self._readers = [read for _, read, _ in self._aspects]
        self._was = [read() for read in self._readers]
        self._loggers = _Loggers()
        self._threads = _count()
        self._children = _Children()
        self._functions = _Functions()

    def restore(self) -> tuple[str, ...]:
        """Returns what could not be restored."""
        try:
            return tuple(self._restored())
        except BaseException as error:  # noqa: BLE001 - a replaced function or a signal handler raised
            return (f"unknown: {type(error).__name__}",)

    def _restored(self) -> list[str]:
        left = [] if self._is_unchanged() else self._restored_aspects()
        self._loggers.restore()
        if _count() > self._threads and (names := _living_threads(self._threads)):
            left.append(f"threads: {', '.join(names)}")
        if self._children.are_left():
            left.append("child processes")
        return left + self._functions.replaced()

    def _is_unchanged(self) -> bool:
        """All aspects at once: almost no run changes any, and every run waits for this."""
        try:
            return [read() for read in self._readers] == self._was
        except Exception:  # noqa: BLE001 - a task has broken one
            return False

    def _restored_aspects(self) -> list[str]:
        """Names of those that could not be restored."""
        aspects = zip(self._aspects, self._was, strict=True)
        return [name for (name, read, write), was in aspects if not _is_restored(read, write, was)]


def _is_restored(read: Callable[[], Any], write: Callable[[Any], object], was: Any) -> bool:
    try:
        if read() == was:
            return True
        write(was)
        return bool(read() == was)
    except Exception:  # noqa: BLE001 - a task has broken it: the executor is replaced
        return False


def _aspects() -> Iterable[Aspect]:
    """All functions are bound here, once."""
    if threading.current_thread() is threading.main_thread():  # only this one may set signal handlers
        yield from _signal_aspects()
    yield from _interpreter_aspects()
    yield from _process_aspects()
    yield from _limit_aspects()


def _signal_aspects() -> Iterable[Aspect]:
    """Timers first: one that fires without its handler would kill the process."""
    set_timer, set_handler = signal.setitimer, signal.signal
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        yield "timers", partial(_signal.getitimer, int(timer)), partial(_set_timer, set_timer, timer)
    catchable = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP})
    get = _signal.getsignal
    numbers = [int(number) for number in catchable if number < signal.NSIG and get(number) is not None]

    def write(was: list[Any]) -> None:
        for number, handler in zip(numbers, was, strict=True):
            if get(number) is not handler:
                set_handler(number, handler)

    yield "signal handlers", lambda: [*map(get, numbers)], write
    mask, set_mask = _signal.pthread_sigmask, signal.SIG_SETMASK
    block = int(signal.SIG_BLOCK)
    yield "blocked signals", lambda: mask(block, ()), lambda was: mask(set_mask, was)
    wake_up = signal.set_wakeup_fd
    yield "wakeup descriptor", lambda: wake_up(-1), wake_up


def _set_timer(set_timer: Callable[..., object], timer: Any, was: tuple[float, float]) -> None:
    set_timer(timer, *was)


def _interpreter_aspects() -> Iterable[Aspect]:
    path, argv = sys.path, sys.argv
    yield "sys.path", lambda: (sys.path, *sys.path), lambda was: _set_list("path", path, was[1:])
    yield "sys.argv", lambda: (sys.argv, *sys.argv), lambda was: _set_list("argv", argv, was[1:])
    names = ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")
    attributes = vars(sys)

    def write(was: list[Any]) -> None:
        attributes.update(zip(names, was, strict=True))

    yield "streams and hooks", lambda: [attributes.get(name) for name in names], write
    yield "recursion limit", sys.getrecursionlimit, sys.setrecursionlimit
    yield "switch interval", sys.getswitchinterval, sys.setswitchinterval
    yield "trace function", sys.gettrace, sys.settrace
    yield "profile function", sys.getprofile, sys.setprofile
    enable, disable = gc.enable, gc.disable
    yield "garbage collector", gc.isenabled, lambda was: enable() if was else disable()
    set_threshold = gc.set_threshold
    yield "garbage collector thresholds", gc.get_threshold, lambda was: set_threshold(*was)
    yield "warnings", lambda: list(warnings.filters), _set_warning_filters
    # Documented for implementations of event loops.
    yield "running event loop", asyncio._get_running_loop, asyncio._set_running_loop  # noqa: SLF001
    modules = sys.modules
    yield "sys.modules", lambda: sys.modules is modules and modules.get("os") is os, _cannot
    yield "socket timeout", socket.getdefaulttimeout, socket.setdefaulttimeout
    everything = locale.LC_ALL
    set_locale = _locale.setlocale
    yield "locale", lambda: set_locale(everything), lambda was: set_locale(everything, was)


def _set_list(name: str, it: list[str], content: tuple[str, ...]) -> None:
    it[:] = content
    setattr(sys, name, it)


def _set_warning_filters(was: list[Any]) -> None:
    warnings.simplefilter("default", append=True)  # clears the cache of the old filters
    warnings.filters[:] = was  # type: ignore[index]


def _process_aspects() -> Iterable[Aspect]:
    yield "working directory", os.getcwd, os.chdir
    yield "environment", _environment(), _set_environment
    umask = os.umask
    first = umask(0o077)
    umask(first)
    yield "umask", lambda: umask(first), umask  # it can only be read by setting it
    yield "user", os.geteuid, _cannot
    priority = os.getpriority
    yield "priority", lambda: priority(0, 0), lambda was: os.setpriority(0, 0, was)
    if hasattr(os, "sched_getaffinity"):
        affinity, set_affinity = os.sched_getaffinity, os.sched_setaffinity
        yield "CPUs", lambda: affinity(0), lambda was: set_affinity(0, was)
    yield "standard output", partial(_outputs, os.fstat), _cannot
    yield "open descriptors", partial(_are_in_order, os.dup, os.close, _free_descriptor()), _cannot


def _environment() -> Callable[[], Any]:
    environ, attributes = os.environ, vars(os)
    encoded = vars(os.environ)["_data"]  # avoids decoding
    return lambda: (attributes.get("environ") is environ, encoded.copy())


_ENVIRON = os.environ
_TZSET = time.tzset


def _set_environment(was: tuple[bool, dict[bytes, bytes]]) -> None:
    os.environ = _ENVIRON  # noqa: B003 - a task may have replaced the object
    wanted = {os.fsdecode(name): os.fsdecode(value) for name, value in was[1].items()}
    for name in [name for name in _ENVIRON if name not in wanted]:
        del _ENVIRON[name]
    for name, value in wanted.items():
        if _ENVIRON.get(name) != value:
            _ENVIRON[name] = value
    _TZSET()  # TZ may have changed


def _outputs(fstat: Callable[[int], os.stat_result]) -> list[tuple[int, int] | None]:
    return [_identity(fstat, descriptor) for descriptor in (1, 2)]


def _identity(fstat: Callable[[int], os.stat_result], descriptor: int) -> tuple[int, int] | None:
    try:
        found = fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _free_descriptor() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    return reading


def _are_in_order(dup: Callable[[int], int], close: Callable[[int], None], first: int) -> bool:
    """Checks the lowest free number: low if a standard one was closed, high if many were left open."""
    free = dup(2)
    close(free)
    return _STANDARD <= free <= first + MANY_DESCRIPTORS


_STANDARD = 3
_LIMITS = ("AS", "CORE", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK")


def _limit_aspects() -> Iterable[Aspect]:
    get, set_ = resource.getrlimit, resource.setrlimit
    limits = {name.removeprefix("RLIMIT_"): value for name, value in vars(resource).items()}
    kinds = [limits[name] for name in _LIMITS if name in limits]

    def write(was: list[tuple[int, int]]) -> None:
        for kind, pair in zip(kinds, was, strict=True):
            if get(kind) != pair:
                set_(kind, pair)

    yield "resource limits", lambda: [*map(get, kinds)], write


def _cannot(_was: Any) -> None:
    """Cannot be restored."""


class _Loggers:
    """The configuration of all loggers, and `logging.disable`."""

    def __init__(self) -> None:
        self._root = logging.root
        self._manager = logging.root.manager
        self._disabled = self._manager.disable
        self._was = {name: _settings_of(found) for name, found in self._all()}

    def _all(self) -> list[tuple[str, logging.Logger]]:
        named = self._manager.loggerDict.copy()
        found = [(name, one) for name, one in named.items() if isinstance(one, logging.Logger)]
        return [("", self._root), *found]

    def restore(self) -> None:
        if self._manager.disable != self._disabled:
            self._manager.disable = self._disabled
        for name, logger in self._all():
            was = self._was.get(name)
            if was is None:
                was = self._was[name] = _as_new(logger)
            if _settings_of(logger) != was:
                _set_logger(logger, was)


_LoggerSettings = tuple[int, bool, bool, list[Any], list[Any]]


def _settings_of(logger: logging.Logger) -> _LoggerSettings:
    return (logger.level, logger.disabled, logger.propagate, logger.handlers[:], logger.filters[:])


def _as_new(logger: logging.Logger) -> _LoggerSettings:
    """The settings of a logger that the run has created. Libraries add a NullHandler to theirs."""
    kept = [handler for handler in logger.handlers if isinstance(handler, logging.NullHandler)]
    return (logging.NOTSET, False, True, kept, [])


def _set_logger(logger: logging.Logger, was: _LoggerSettings) -> None:
    level, disabled, propagate, handlers, filters = was
    logger.setLevel(level)
    logger.disabled, logger.propagate = disabled, propagate
    logger.handlers[:], logger.filters[:] = handlers, filters


_count = _thread._count  # noqa: SLF001 - includes threads unknown to `threading`
_monotonic = time.monotonic


def _living_threads(allowed: int) -> list[str]:
    deadline = _monotonic() + SETTLE_SEC
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in threads[allowed:]:
        thread.join(max(0.0, deadline - _monotonic()))
    if _count() <= allowed:
        return []
    return [thread.name for thread in threads[allowed:] if thread.is_alive()] or ["unnamed"]


class _Children:
    """Child processes. Those started while the flows were loaded are allowed."""

    def __init__(self) -> None:
        self._known = child_processes()
        self._is_unknown = not self._known and _some_live()  # the system does not list them

    def are_left(self) -> bool:
        """Whether the run has left live processes. Ended ones are reaped."""
        deadline = _monotonic() + SETTLE_SEC
        while not self._is_unknown and _some_live() and (not self._known or child_processes() - self._known):
            if _monotonic() >= deadline:
                return True
            _sleep(SETTLE_SEC / 10)
        return False


_waitpid, _sleep = os.waitpid, time.sleep


def _some_live() -> bool:
    try:
        while _waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


_GUARDED: dict[Any, str] = {
    builtins: "__import__ exec getattr input isinstance iter len open print setattr super type",
    os: "_exit chdir close dup environ fork getcwd getenv getpid kill listdir open path pipe read remove"
    " rename stat system unlink waitpid write",
    time: "localtime monotonic perf_counter sleep time",
    socket: "create_connection getaddrinfo socket socketpair",
    socket.socket: "accept bind close connect recv send sendall",
    threading: "Condition Event Lock RLock Thread current_thread enumerate get_ident",
    subprocess: "Popen check_call check_output run",
    logging: "Logger getLogger",
    json: "dumps loads",
    inspect: "signature",
}
"""Functions that the executor, pyoco and most libraries use."""


class _Functions:
    """Functions of the standard library that a task has replaced."""

    def __init__(self) -> None:
        self._picks = [(operator.attrgetter(*names.split()), thing) for thing, names in _GUARDED.items()]
        self._was = self._read()

    def _read(self) -> list[Any]:
        return [pick(thing) for pick, thing in self._picks]

    def _are_unchanged(self) -> bool:
        try:
            return self._read() == self._was
        except AttributeError:  # one was deleted
            return False

    def replaced(self) -> list[str]:
        if self._are_unchanged():
            return []
        return [
            f"replaced functions of {thing.__name__}"
            for (pick, thing), was in zip(self._picks, self._was, strict=True)
            if _has_changed(pick, thing, was)
        ]


def _has_changed(pick: Callable[[Any], Any], thing: Any, was: Any) -> bool:
    try:
        return bool(pick(thing) != was)
    except AttributeError:
        return True
