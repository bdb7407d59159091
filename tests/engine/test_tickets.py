"""Each ticket goes to the executor or back to its worker, never to both and never to nobody."""

import os
import threading

from pyoco_server.engine.executors.protocol import ExecutorTickets, Tickets
from support.programs import proc


def both_ends() -> tuple[Tickets, ExecutorTickets]:
    ours = Tickets()
    return ours, ExecutorTickets(ours.for_executor())


def test_a_job_is_done_by_the_executor_if_nobody_took_its_ticket_back() -> None:
    ours, theirs = both_ends()
    ours.give(1)
    ours.give(2)
    assert (theirs.take(1), theirs.take(2)) == (True, True)
    assert ours.take_back() == set()


def test_a_ticket_that_was_taken_back_is_gone_for_the_executor() -> None:
    ours, theirs = both_ends()
    for number in (1, 2, 3):
        ours.give(number)
    assert theirs.take(1)
    assert ours.take_back() == {2, 3}
    assert not theirs.take(2)
    assert not theirs.take(3)


def test_jobs_that_were_taken_back_are_passed_over_for_the_next_one() -> None:
    ours, theirs = both_ends()
    ours.give(1)
    assert ours.take_back() == {1}
    ours.give(2)
    assert [theirs.take(number) for number in (1, 2)] == [False, True]


def test_a_pipe_that_was_closed_has_no_tickets() -> None:
    ours, theirs = both_ends()
    ours.give(1)
    ours.close()
    assert ours.take_back() == set()
    assert theirs.take(1)  # it is still there for the executor, until that one ends, too
    assert not theirs.take(2)


def test_both_at_once_never_get_the_same_ticket() -> None:
    ours, theirs = both_ends()
    given = 20_000
    taken: set[int] = set()

    def work() -> None:
        for number in range(1, given + 1):
            may_begin.acquire()
            if theirs.take(number):
                taken.add(number)

    may_begin = threading.Semaphore(0)
    executor = threading.Thread(target=work)
    executor.start()
    back: set[int] = set()
    for number in range(1, given + 1):
        ours.give(number)
        may_begin.release()
        if number % 3 == 0:
            back |= ours.take_back()
    executor.join()
    back |= ours.take_back()
    assert back.isdisjoint(taken)
    assert back | taken == set(range(1, given + 1))
    assert back
    assert taken


def test_descriptors_are_not_left_open() -> None:
    before = len(list(proc("self/fd").iterdir()))
    ours, theirs = both_ends()
    os.close(theirs._reading)
    ours.close()
    assert len(list(proc("self/fd").iterdir())) == before
