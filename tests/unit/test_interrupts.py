"""REQ-0021: Ctrl-C comes through where it may, and only there."""

import contextlib
import os
import signal

from pyoco_server.cli.terminal import Interrupts


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(*, before: bool = False, inside: bool = False, after: bool = False) -> list[str]:
    """Where it got to, with Ctrl-C pressed at one place."""
    reached = []
    with contextlib.suppress(KeyboardInterrupt):
        with Interrupts() as interrupts:
            if before:
                press_ctrl_c()
            reached.append("drawn")
            with interrupts.allowed():
                if inside:
                    press_ctrl_c()
                reached.append("followed")
            if after:
                press_ctrl_c()
            reached.append("drawn for the last time")
        reached.append("not interrupted")
    return reached


def test_where_it_is_allowed_it_comes_at_once() -> None:
    assert interrupted(inside=True) == ["drawn"]


def test_before_that_it_waits() -> None:
    assert interrupted(before=True) == ["drawn"]


def test_after_that_it_waits_and_is_not_lost() -> None:
    assert interrupted(after=True) == ["drawn", "followed", "drawn for the last time"]


def test_without_it_nothing_is_different() -> None:
    assert interrupted()[-1] == "not interrupted"


def test_afterwards_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts, interrupts.allowed():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
