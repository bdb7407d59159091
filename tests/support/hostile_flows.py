"""Tasks that do to their process whatever they can, and one that reports what it finds afterwards."""

import asyncio
import atexit
import builtins
import contextlib
import ctypes
import decimal
import gc
import locale
import logging
import logging.config
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyoco import Flow, task

FOREVER = 600.0
LEFT_OVER: list[Any] = []

Hostile = Callable[[str], Any]
HOSTILE: dict[str, Hostile] = {}


def hostile(function: Hostile) -> Hostile:
    HOSTILE[function.__name__] = function
    return function


def exit_code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@hostile
def fork_and_exit(_marks: str) -> Any:
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    return exit_code_of(pid)


@hostile
def fork_and_return(_marks: str) -> Any:
    pid = os.fork()
    return "child" if pid == 0 else exit_code_of(pid)


@hostile
def fork_and_raise(_marks: str) -> Any:
    pid = os.fork()
    if pid == 0:
        raise ValueError("in the child")
    return exit_code_of(pid)


@hostile
def fork_and_interrupt(_marks: str) -> Any:
    pid = os.fork()
    if pid == 0:
        raise KeyboardInterrupt
    return exit_code_of(pid)


@hostile
def fork_and_leave_it(_marks: str) -> Any:
    for _ in range(5):
        if os.fork() == 0:
            return "child"
    return "parent"


@hostile
def fork_as_c_does(_marks: str) -> Any:
    """Python is not asked, so that its hooks are not called."""
    pid = ctypes.PyDLL(None).fork()
    return "child" if pid == 0 else exit_code_of(pid)


@hostile
def fork_in_a_thread(_marks: str) -> Any:
    codes: list[int] = []

    def work() -> None:
        pid = os.fork()
        if pid != 0:
            codes.append(exit_code_of(pid))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return codes


@hostile
def use_multiprocessing(_marks: str) -> Any:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    processes = [context.Process(target=answer, args=(answers, number)) for number in range(3)]
    for process in processes:
        process.start()
    found = sorted(answers.get() for _ in processes)
    for process in processes:
        process.join()
    return found, [process.exitcode for process in processes]


def answer(answers: Any, number: int) -> None:
    print("in a child")  # noqa: T201
    answers.put(number)
    sys.exit(number)


@hostile
def crash_with_a_living_child(_marks: str) -> Any:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER,)).start()
    return ctypes.string_at(0)


@hostile
def abort_with_a_living_child(_marks: str) -> Any:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
    os.abort()


@hostile
def kill_the_group(_marks: str) -> Any:
    os.killpg(os.getpgrp(), signal.SIGKILL)
    time.sleep(FOREVER)


@hostile
def terminate_everybody_near(_marks: str) -> Any:
    os.kill(0, signal.SIGTERM)
    time.sleep(FOREVER)


@hostile
def close_every_descriptor(_marks: str) -> Any:
    os.closerange(0, 1_000)
    return "closed"


@hostile
def close_the_channels_and_stay(_marks: str) -> Any:
    os.closerange(3, 1_000)
    time.sleep(FOREVER)


@hostile
def write_garbage_everywhere(_marks: str) -> Any:
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\x00\x00\x00\x09 garbage")
    return "written"


@hostile
def write_a_promise_of_more(_marks: str) -> Any:
    """As the beginning of a long message, which would swallow the next."""
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            os.write(descriptor, b"\x00\x10\x00\x00")
    return "written"


@hostile
def read_the_tickets(_marks: str) -> Any:
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError):
            if not os.get_blocking(descriptor):
                os.read(descriptor, 1 << 16)
    return "read"


@hostile
def read_the_jobs(_marks: str) -> Any:
    for descriptor in range(3, 100):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as channel:
            channel.recv(1 << 16, socket.MSG_DONTWAIT)
    return "read"


@hostile
def exhaust_descriptors(_marks: str) -> Any:
    with contextlib.suppress(OSError):
        while True:
            LEFT_OVER.append(socket.socket())
    return "exhausted"


@hostile
def recurse_without_end(_marks: str) -> Any:
    def deeper() -> Any:
        return deeper()

    return deeper()


@hostile
def change_the_interpreter(_marks: str) -> Any:
    sys.setrecursionlimit(123)
    sys.setswitchinterval(5.0)
    gc.disable()
    gc.set_threshold(1)
    sys.settrace(lambda *_: None)
    warnings.simplefilter("error")
    socket.setdefaulttimeout(0.000_001)
    decimal.getcontext().prec = 1
    return "changed"


@hostile
def print_a_million_times(_marks: str) -> Any:
    for number in range(1_000_000):
        print(number)  # noqa: T201
    return "printed"


@hostile
def leave_a_thread_that_prints(_marks: str) -> Any:
    def chatter() -> None:
        while True:
            print("from a run that has ended")  # noqa: T201
            time.sleep(0.001)

    threading.Thread(target=chatter, daemon=True).start()
    return "left"


@hostile
def leave_a_thread_that_does_not_end(_marks: str) -> Any:
    threading.Thread(target=time.sleep, args=(FOREVER,)).start()
    return "left"


@hostile
def exit_in_a_thread(_marks: str) -> Any:
    thread = threading.Thread(target=sys.exit, args=(9,))
    thread.start()
    thread.join()
    return "ended"


@hostile
def leave_an_alarm(_marks: str) -> Any:
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    return "left"


@hostile
def leave_signal_handlers(_marks: str) -> Any:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return "left"


@hostile
def leave_exit_handlers(_marks: str) -> Any:
    atexit.register(os._exit, 5)
    atexit.register(time.sleep, FOREVER)
    return "left"


@hostile
def put_junk_into_the_streams(_marks: str) -> Any:
    junk = object()
    vars(sys).update(stdout=junk, stderr=junk, stdin=junk, __stdout__=None, __stderr__=None)
    return "put"


@hostile
def redirect_the_outputs(_marks: str) -> Any:
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    return "redirected"


@hostile
def replace_functions(_marks: str) -> Any:
    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError("replaced")

    os.write = os.read = os.getpid = os.getcwd = broken
    socket.socket.sendall = socket.socket.recv = broken  # type: ignore[method-assign]
    builtins.print = broken
    time.sleep = broken
    return "replaced"


@hostile
def forget_all_modules(_marks: str) -> Any:
    sys.modules.clear()
    return "forgotten"


@hostile
def delete_the_working_directory(_marks: str) -> Any:
    directory = tempfile.mkdtemp()
    os.chdir(directory)
    Path(directory).rmdir()
    return "deleted"


@hostile
def change_the_process(_marks: str) -> Any:
    os.umask(0o777)
    os.environ.clear()
    os.environ["PATH"] = "/nowhere"
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    sys.path.clear()
    sys.argv.clear()
    locale.setlocale(locale.LC_ALL, "C")
    return "changed"


@hostile
def replace_the_environment(_marks: str) -> Any:
    os.environ = {}  # type: ignore[assignment] # noqa: B003
    sys.path = []
    return "replaced"


@hostile
def lower_the_limits(_marks: str) -> Any:
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (12, 12))
    os.nice(5)
    return "lowered"


@hostile
def lead_another_session(_marks: str) -> Any:
    with contextlib.suppress(OSError):
        os.setsid()
    with contextlib.suppress(OSError):
        os.setpgid(0, os.getppid())
    return "tried"


@hostile
def leave_a_daemon(marks: str) -> Any:
    """Forked twice, in a session of its own."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            (Path(marks) / "daemon").write_text(str(os.getpid()))
            time.sleep(FOREVER)
        os._exit(0)
    return exit_code_of(pid)


@hostile
def leave_a_command(_marks: str) -> Any:
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"], start_new_session=True)
    return "left"


@hostile
def configure_logging(_marks: str) -> Any:
    logging.basicConfig(level=logging.CRITICAL, stream=sys.stdout, force=True)
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": True})
    logging.getLogger("hostile").addHandler(logging.StreamHandler(sys.stderr))
    logging.getLogger("hostile").propagate = False
    logging.disable(logging.CRITICAL)
    return "configured"


@hostile
def leave_a_running_event_loop(_marks: str) -> Any:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncio._set_running_loop(loop)
    loop.close()
    return "left"


@hostile
def exit_at_once(_marks: str) -> Any:
    os._exit(0)


@hostile
def raise_what_is_no_exception(_marks: str) -> Any:
    class Weird(BaseException):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    raise Weird


def attack() -> Flow:
    @task
    def do(how: str, marks: str) -> Any:
        return HOSTILE[how](marks)

    @task
    def after(marks: str) -> int:
        """Runs once, whatever the task before has forked."""
        with (Path(marks) / "after").open("a") as file:
            file.write("x")
        return 1

    return Flow(name="attack") >> do >> after


def probe() -> Flow:
    """What its process is like, and a value that is its own."""

    @task
    def look(value: int) -> dict[str, Any]:
        print(f"probe {value}")  # noqa: T201
        return {"value": value, "state": state()}

    return Flow(name="probe") >> look


def state() -> dict[str, Any]:
    root = logging.getLogger()
    umask = os.umask(0o022)
    os.umask(umask)
    hostile = logging.getLogger("hostile")
    return {
        "cwd": os.getcwd(),  # noqa: PTH109
        "environ": dict(os.environ),
        "zone": time.tzname[0],
        "path": list(sys.path),
        "argv": list(sys.argv),
        "umask": umask,
        "handlers": [repr(signal.getsignal(number)) for number in range(1, 32)],
        "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "timer": signal.getitimer(signal.ITIMER_REAL)[0],
        "logging": [root.level, len(root.handlers), root.disabled, root.manager.disable],
        "logger": [hostile.level, len(hostile.handlers), hostile.disabled, hostile.propagate],
        "threads": threading.active_count(),
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "gc": [gc.isenabled(), *gc.get_threshold()],
        "trace": sys.gettrace() is None,
        "warnings": len(warnings.filters),
        "timeout": socket.getdefaulttimeout(),
        "precision": decimal.getcontext().prec,
        "limits": [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)],
        "nice": os.nice(0),
        "loop": asyncio.run(nothing()),
    }


async def nothing() -> None:
    await asyncio.sleep(0)


def both() -> Flow:
    """Ends only when another of it runs at the same time."""

    @task
    def meet(marks: str, me: str, other: str) -> str:
        (Path(marks) / me).touch()
        deadline = time.monotonic() + 60
        while not (Path(marks) / other).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(other)
            time.sleep(0.01)
        return me

    return Flow(name="both") >> meet


def beside() -> Flow:
    @task
    def wait(marks: str) -> str:
        made = Path(marks) / ".in-beside"
        made.write_text(str(os.getpid()))
        made.rename(Path(marks) / "in-beside")
        while not (Path(marks) / "go").exists():
            time.sleep(0.01)
        return "undisturbed"

    return Flow(name="beside") >> wait


def patricide() -> Flow:
    @task
    def kill_the_parent(marks: str) -> None:
        subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER})"])
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(FOREVER)

    return Flow(name="patricide") >> kill_the_parent


_FLOWS = {maker.__name__: maker for maker in (attack, probe, both, beside, patricide)}


def resolve(name: str) -> Flow:
    return _FLOWS[name]()
