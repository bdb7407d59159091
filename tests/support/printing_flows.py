"""Flows that print in every way there is."""
# ruff: noqa: T201

import ctypes
import logging
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyoco import Flow, task

log = logging.getLogger("acme.flows")


def _mark(marks: str, name: str) -> None:
    path = Path(marks) / f".{name}"
    path.write_text(str(os.getpid()))
    path.rename(Path(marks) / name)


def _wait_for(marks: str, name: str) -> None:
    while not (Path(marks) / name).exists():
        time.sleep(0.01)


def _flow(work: Callable[..., Any]) -> Flow:
    return Flow(name=work.__name__) >> task(work)


def undecodable() -> None:
    print(os.fsdecode(b"caf\xe9"))
    sys.stderr.write("\ud800\n")
    print("after")


def as_a_stream() -> dict[str, Any]:
    out = sys.stdout
    out.buffer.write("grüße\n".encode())
    out.buffer.write(b"raw \xff\n")
    half, rest = "é\n".encode()[:1], "é\n".encode()[1:]
    out.buffer.write(half)
    out.buffer.write(rest)
    out.buffer.flush()
    out.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    out.writelines(["a\n", "b\n"])
    print("left", end="")
    print(" and right", end="\n", flush=True)
    try:
        out.write(b"bytes")  # type: ignore[arg-type]
    except TypeError as error:
        print(error)
    subprocess.run(["sh", "-c", "echo by name"], stdout=out, check=True)
    return {
        "encoding": out.encoding,
        "tty": out.isatty(),
        "fds": [out.fileno(), out.buffer.fileno(), sys.stderr.fileno()],
        "writable": out.writable(),
        "name": out.name,
        "closed": out.closed,
    }


def with_children() -> None:
    print("before")
    subprocess.run(["sh", "-c", "echo child; echo problem >&2"], check=True)
    print("between")
    os.system("printf 'not text \\377\\n'")  # noqa: S605
    forked = multiprocessing.get_context("fork").Process(target=print, args=("forked",))
    forked.start()
    forked.join()
    os.write(2, b"descriptor\n")
    ctypes.CDLL(None).printf(b"from C\n")
    print("after")


def c_without_newline() -> None:
    ctypes.CDLL(None).printf(b"never ended")


def logs_only() -> None:
    log.debug("too fine")
    log.info("loaded %d rows", 3)
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    quiet = logging.getLogger("quiet")
    quiet.addHandler(logging.NullHandler())
    quiet.info("as a library")


def configures_logging() -> None:
    logging.basicConfig(level=logging.DEBUG, format="mine: %(message)s")
    log.info("once")
    log.debug("as asked for")


def prints_much(lines: int = 100_000) -> int:
    """How many KiB the process has grown."""
    print("first")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(lines):
        print(f"line {number:09d} " + "x" * 80)
    print("last")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def never_ends_its_line() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(5_000):
        sys.stdout.write("x" * 10_000)
    print("the end")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def leaves_a_thread(marks: str) -> None:
    def go_on() -> None:
        while not (Path(marks) / "enough").exists():
            print("from the thread of another run")
            log.warning("from the thread of another run")
            time.sleep(0.001)

    print("mine")
    threading.Thread(target=go_on, daemon=True).start()


def waits_a_moment(marks: str) -> None:
    print("begin")
    time.sleep(0.3)
    print("end")
    (Path(marks) / "enough").touch()


def prints_until(marks: str) -> None:
    """A line every now and then, before and after the test has done something."""
    number = 0
    _mark(marks, "printing")
    while not (Path(marks) / "go").exists():
        print(f"line {number}")
        number += 1
        time.sleep(0.02)
    print(f"{number} lines")


def crashes(marks: str) -> None:
    print("soon")
    _mark(marks, "in-crash")
    _wait_for(marks, "go")
    ctypes.string_at(0)


def watched(marks: str) -> None:
    """More than is kept from the start, then it waits."""
    for number in range(2_000):
        print(f"line {number:09d} " + "x" * 80)
    _mark(marks, "printed")
    _wait_for(marks, "go")


def slow_and_much(marks: str) -> None:
    number = 0
    while not (Path(marks) / "go").exists():
        for _ in range(100):
            print(f"line {number} " + "x" * 80)
            number += 1
        time.sleep(0.01)
    for number in range(1000):
        print(f"late {number} " + "x" * 80)
    print("the last")


_TASKS = (
    slow_and_much,
    undecodable,
    as_a_stream,
    with_children,
    c_without_newline,
    logs_only,
    configures_logging,
    prints_much,
    never_ends_its_line,
    leaves_a_thread,
    waits_a_moment,
    prints_until,
    crashes,
    watched,
)
_FLOWS = {work.__name__: work for work in _TASKS}


def resolve(name: str) -> Flow:
    return _flow(_FLOWS[name])
