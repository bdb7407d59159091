"""Flows for workers that are processes of their own. They speak to their test through files in `marks`."""

import contextlib
import ctypes
import itertools
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyoco import Flow, task
from pyoco.dsl.syntax import switch

from pyoco_server import artifact, log, progress, submit

PATIENCE_SEC = 60.0
"""How long a task waits for its test; only a broken test waits so long."""
LOOK_SEC = 0.01


def mark(marks: str, name: str) -> None:
    """Tells the test: `name` was reached, by this process."""
    path = Path(marks) / f".{name}.{os.getpid()}"
    path.write_text(str(os.getpid()))
    path.rename(Path(marks) / name)


def wait_for(marks: str, name: str, patience: float = PATIENCE_SEC) -> None:
    deadline = time.monotonic() + patience
    while not (Path(marks) / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(LOOK_SEC)


def steps() -> Flow:
    """Stops in its first task until the test lets it go on."""

    @task
    def first(ctx: Any, marks: str, until_cancelled: bool = False) -> str:  # noqa: FBT001, FBT002
        mark(marks, "in-first")
        if until_cancelled:  # so that the test knows that the cancel has arrived
            while not ctx.is_cancelled:
                time.sleep(LOOK_SEC)
        else:
            wait_for(marks, "go")
        return "first"

    @task
    def second(marks: str) -> str:
        mark(marks, "in-second")
        return "second"

    return Flow(name="steps") >> first >> second


def watchful() -> Flow:
    @task
    def watch(ctx: Any, marks: str) -> str:
        mark(marks, "in-watch")
        deadline = time.monotonic() + PATIENCE_SEC
        while not ctx.is_cancelled and time.monotonic() < deadline:
            time.sleep(LOOK_SEC)
        mark(marks, "saw-cancel")
        return "stopped"

    return Flow(name="watchful") >> watch


def stuck() -> Flow:
    """Never looks, never returns."""

    @task
    def sleep(marks: str) -> None:
        mark(marks, "in-sleep")
        time.sleep(10 * PATIENCE_SEC)

    return Flow(name="stuck") >> sleep


def hold_the_interpreter(seconds: float) -> None:
    """As a C extension does that computes without letting go of the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


def holding() -> Flow:
    @task
    def hold(seconds: float, marks: str) -> str:
        mark(marks, "in-hold")
        hold_the_interpreter(seconds)
        return "held"

    return Flow(name="holding") >> hold


def counted() -> Flow:
    """Leaves an `x` for every start."""

    @task
    def sleep(seconds: float, marks: str) -> None:
        with (Path(marks) / "starts").open("a") as starts:
            starts.write("x")
        time.sleep(seconds)

    return Flow(name="counted") >> sleep


def tiny() -> Flow:
    @task
    def one(pause: float = 0.0) -> int:
        time.sleep(pause)
        return 1

    @task
    def two(one: int) -> int:
        return one + 1

    @task
    def three(two: int) -> int:
        return two + 1

    return Flow(name="tiny") >> one >> two >> three


def dying() -> Flow:
    @task
    def fine() -> str:
        return "fine"

    @task
    def die(how: str) -> None:
        match how:
            case "exit":
                os._exit(7)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)

    return Flow(name="dying") >> fine >> die


_counted = itertools.count(1)


def flaky() -> Flow:
    """Fails as often as it is asked to, over all processes."""

    @task
    def work(marks: str, failures: int) -> int:
        tries = len(list(Path(marks).glob("try-*"))) + 1
        mark(marks, f"try-{tries}")
        if tries <= failures:
            raise ValueError(f"try {tries} fails")
        return tries

    return Flow(name="flaky") >> work


def halting() -> Flow:
    """Its second task fails until the test repairs it; every start of a task leaves a letter."""

    @task
    def load(marks: str) -> dict[str, Any]:
        return {"rows": [1, 2, 3], "pid": _started(marks, "l")}

    @task
    def send(load: dict[str, Any], marks: str) -> int:
        _started(marks, "s")
        if not (Path(marks) / "repaired").exists():
            raise ValueError("not yet")
        mark(marks, "in-send")
        wait_for(marks, "go")
        return sum(load["rows"])

    return Flow(name="halting") >> load >> send


def _started(marks: str, letter: str) -> int:
    with (Path(marks) / "starts").open("a") as starts:
        starts.write(letter)
    return os.getpid()


def who() -> Flow:
    """Which process ran it, and which of its runs it was."""

    @task
    def tell(megabytes: int = 0) -> dict[str, Any]:
        _kept.append(bytearray(os.urandom(1024)) * 1024 * megabytes)
        return {"pid": os.getpid(), "nth": next(_counted), "fds": len(list(Path("/proc/self/fd").iterdir()))}

    return Flow(name="who") >> tell


_kept: list[Any] = []


def talking() -> Flow:
    @task
    def first(marks: str) -> None:
        print("hello from first")  # noqa: T201
        mark(marks, "in-first")
        wait_for(marks, "go")

    @task
    def second() -> None:
        for number in range(20_000):
            print(f"line {number} " + "x" * 90)  # noqa: T201

    return Flow(name="talking") >> first >> second


def _large(name: str) -> Flow:
    """Its outputs take long to be read, so that reports of its steps are on their way when it ends."""

    def pause_and_give(pause: float = 0.0) -> str:
        time.sleep(pause)
        return give()

    def give() -> str:
        return name * 20_000

    flow = Flow(name=name)
    for number in range(3):
        made = task(give if number else pause_and_give)
        made.task.name = f"{name}_{number}"
        flow = flow >> made
    return flow


def large_a() -> Flow:
    return _large("large_a")


def large_b() -> Flow:
    return _large("large_b")


def limited() -> Flow:
    return _limited(0.3)


def limited_generously() -> Flow:
    """Enough for a busy machine."""
    return _limited(2.0)


def limited_for_long() -> Flow:
    return _limited(PATIENCE_SEC)


def _limited(timeout_sec: float) -> Flow:
    """Its first task has a timeout; `how` says what it does with its time."""

    @task
    def first(ctx: Any, marks: str, how: str, seconds: float = 10 * PATIENCE_SEC) -> str:
        mark(marks, "in-first")
        match how:
            case "loop":
                while True:
                    pass
            case "hold":
                hold_the_interpreter(seconds)
            case "look":
                while not ctx.is_cancelled:
                    time.sleep(LOOK_SEC)
                mark(marks, "saw-cancel")
            case "wait":
                wait_for(marks, "go")
            case _:
                time.sleep(seconds)
        return how

    @task
    def second(marks: str) -> str:
        mark(marks, "in-second")
        return "second"

    first.task.timeout_sec = timeout_sec
    return Flow(name="limited") >> first >> second


def limited_with_a_switch() -> Flow:
    """With control flow, which the engine runs in one thread and without looking at timeouts."""

    @task
    def first(marks: str, how: str) -> str:
        mark(marks, "in-first")
        while how == "loop":
            pass
        return how

    @task
    def second() -> str:
        return "second"

    first.task.timeout_sec = 0.3
    return Flow(name="limited_with_a_switch") >> first >> switch("$ctx.params.how")["quick" >> second]


def family() -> Flow:
    """Dies while a process that it has forked goes on."""

    @task
    def die(marks: str) -> None:
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(10 * PATIENCE_SEC,))
        process.start()
        (Path(marks) / "child").write_text(str(process.pid))
        ctypes.string_at(0)

    return Flow(name="family") >> die


def parenting() -> Flow:
    """Has two children, one in a session of its own, and does not end."""

    @task
    def wait(marks: str) -> None:
        for name, own_session in (("in-child", False), ("in-daemon", True)):
            command = f"import sys; sys.path.insert(0, {_HERE!r}); import process_flows as f;"
            command += f"f.mark({marks!r}, {name!r}); f.time.sleep({10 * PATIENCE_SEC})"
            subprocess.Popen([sys.executable, "-c", command], start_new_session=own_session)
        mark(marks, "in-parent")
        time.sleep(10 * PATIENCE_SEC)

    return Flow(name="parenting") >> wait


_HERE = str(Path(__file__).parent)


def messy() -> Flow:
    """Leaves behind what can be put back, or what cannot."""

    @task
    def leave(how: str, marks: str) -> int:
        if how == "thread":
            threading.Thread(target=_chatter, daemon=True).start()
        elif how == "child":
            subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({10 * PATIENCE_SEC})"])
        else:
            os.chdir(marks)
            os.environ["LEFT"] = "behind"
            sys.path.insert(0, marks)
            os.umask(0o777)
            logging.basicConfig(stream=sys.stdout, level=logging.CRITICAL)
            signal.setitimer(signal.ITIMER_REAL, 0.02)
        return os.getpid()

    return Flow(name="messy") >> leave


def _chatter() -> None:
    while True:
        print("from a run that has ended")  # noqa: T201
        time.sleep(0.001)


def tidy() -> Flow:
    """What it finds where another run was before."""

    @task
    def look(marks: str) -> dict[str, Any]:
        umask = os.umask(0o022)
        os.umask(umask)
        time.sleep(0.05)  # so that a timer that was left over would end the process
        return {
            "pid": os.getpid(),
            "cwd": os.getcwd() == marks,  # noqa: PTH109
            "environ": "LEFT" in os.environ,
            "path": marks in sys.path,
            "umask": umask == 0o777,
            "logging": len(logging.getLogger().handlers) + logging.getLogger().level,
        }

    return Flow(name="tidy") >> look


def forking() -> Flow:
    @task
    def fork(how: str) -> int:
        pid = os.fork()
        if pid == 0:
            if how == "exit":
                sys.exit(3)
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    fork.task.retries = 2
    return Flow(name="forking") >> fork


def forking_in_a_pool() -> Flow:
    @task
    def left() -> int:
        pid = os.fork()
        if pid == 0:
            sys.exit(5)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @task
    def right() -> int:
        return 1

    return Flow(name="forking_in_a_pool") >> (left & right)


def stealing() -> Flow:
    """Reads what stands behind it from its executor's channel: all of it, or all but its last bytes."""

    @task
    def steal(
        marks: str, leave: int = 0, *, tickets: bool = False, linger: bool = False, die: bool = False
    ) -> None:
        mark(marks, "in-steal")
        descriptor = _readable_socket()
        os.read(descriptor, len(_peeked(descriptor)) - leave)
        for other in range(3, 100) if tickets else ():
            with contextlib.suppress(OSError):
                if not os.get_blocking(other):
                    os.read(other, 1 << 16)
        if linger:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        if die:
            os._exit(9)

    return Flow(name="stealing") >> steal


def _readable_socket() -> int:
    """The work channel, once there is a job in it."""
    while True:
        for descriptor in range(3, 100):
            with contextlib.suppress(OSError):
                if _peeked(descriptor):
                    return descriptor
        time.sleep(LOOK_SEC)


def _peeked(descriptor: int) -> bytes:
    with socket.socket(fileno=os.dup(descriptor)) as channel:
        return channel.recv(1 << 16, socket.MSG_PEEK | socket.MSG_DONTWAIT)


def huge() -> Flow:
    """Its first task returns 1.5 million small dicts, which its second one gets."""

    @task
    def load() -> list[Any]:
        return [{"i": 0, "name": "row"}] * 1_500_000

    @task
    def count(load: list[Any], marks: str) -> int:
        mark(marks, "in-count")
        wait_for(marks, "go")
        return len(load)

    @task
    def rest(load: list[Any], whole: bool = False) -> Any:  # noqa: FBT001, FBT002
        return load if whole else len(load)

    return Flow(name="huge") >> load >> count >> rest


def bulky() -> Flow:
    """Returns a text of so many characters, made of pieces that differ."""

    @task
    def give(size: int) -> str:
        return "".join(f"{n:09d} " for n in range(size // 10))

    return Flow(name="bulky") >> give


def passing() -> Flow:
    """Returns the text that it got, with a mark in front: a value of its own."""

    @task
    def hand_on(text: str, mark: str) -> str:
        return mark + text

    return Flow(name="passing") >> hand_on


def submitting() -> Flow:
    """Starts two equal runs, shows how far it is, and waits for its test."""

    @task
    def start(marks: str) -> list[str]:
        found = [submit("tiny") for _ in range(2)]
        progress(0.5, "started two")
        log("started", level="warning", runs=len(found))
        mark(marks, "submitted")
        wait_for(marks, "go")
        return found

    return Flow(name="submitting") >> start


def saving() -> Flow:
    """Saves a file of so many million bytes."""

    @task
    def save(marks: str, megabytes: int) -> None:
        path = Path(marks) / "data.bin"
        with path.open("wb") as file:
            for n in range(megabytes):
                file.write(f"{n:09d} ".encode() * 100_000)
        artifact.save("data.bin", path)

    return Flow(name="saving") >> save


def too_large() -> Flow:
    """Returns more than is stored of any value."""

    @task
    def give() -> str:
        return "x" * 68_000_000

    return Flow(name="too_large") >> give


def double() -> Flow:
    @task
    def doubled(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return 2 * n

    return Flow(name="double") >> doubled


_FLOWS: dict[str, Callable[[], Flow]] = {
    maker.__name__: maker
    for maker in (
        steps,
        watchful,
        stuck,
        holding,
        counted,
        tiny,
        dying,
        flaky,
        halting,
        who,
        talking,
        large_a,
        large_b,
        limited,
        limited_generously,
        limited_for_long,
        limited_with_a_switch,
        family,
        parenting,
        messy,
        tidy,
        forking,
        forking_in_a_pool,
        huge,
        bulky,
        double,
        passing,
        submitting,
        saving,
        too_large,
        stealing,
    )
}


def resolve(name: str) -> Flow:
    return _FLOWS[name]()
