"""An executor's two channels: what is asked of a run reaches that run, whichever arrives first."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pyoco_server.engine.executors.executor import Executor
from pyoco_server.engine.executors.protocol import (
    HEADER,
    CancelFlow,
    Ended,
    ExecutorSpec,
    ExecutorTickets,
    FromExecutor,
    GoLive,
    Progressed,
    Ready,
    RunFlow,
    Tickets,
    decode_from_executor,
    encode_job,
    frame,
)
from support import process_flows
from support.things import a_job

PATIENCE_SEC = 20.0


class _Told(Executor):
    """Hears what the test tells it; the end of its control channel would be the end of its process."""

    def _listen(self) -> None:
        pass


class Worker:
    """The other end of the channels."""

    def __init__(self, executor: Executor, work: socket.socket, tickets: Tickets) -> None:
        self.executor = executor
        self.tickets = tickets
        self._work = work
        self._jobs = 0

    def send(self, flow: str) -> None:
        self._jobs += 1
        self.tickets.give(self._jobs)
        self._work.sendall(
            frame(RunFlow(self._jobs, encode_job(a_job(flow_name=flow)), after=self._jobs - 1))
        )

    def run(self, flow: str) -> list[FromExecutor]:
        """What it tells until the flow has ended."""
        self.send(flow)
        told = [self.receive()]
        while not isinstance(told[-1], Ended):
            told.append(self.receive())
        return told

    def receive(self) -> FromExecutor:
        _, size = HEADER.unpack(self._work.recv(HEADER.size, socket.MSG_WAITALL))
        return decode_from_executor(self._work.recv(size, socket.MSG_WAITALL))


@contextmanager
def serving() -> Iterator[Worker]:
    (work, their_work), (control, their_control) = socket.socketpair(), socket.socketpair()
    work.settimeout(PATIENCE_SEC)
    tickets = Tickets()
    executor = _Told(their_work, their_control, ExecutorTickets(tickets.for_executor()))
    spec = ExecutorSpec(flow_resolver=f"{process_flows.__file__}:resolve")
    thread = threading.Thread(target=executor.serve, daemon=True)
    with work, their_work, control, their_control:
        thread.start()
        work.sendall(frame(spec))
        worker = Worker(executor, work, tickets)
        assert isinstance(worker.receive(), Ready)
        yield worker
        work.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_SEC)


def test_a_run_tells_its_steps_also_when_it_was_asked_before_its_job_was_read() -> None:
    with serving() as worker:
        worker.executor._obey(GoLive(1))
        assert any(isinstance(told, Progressed) for told in worker.run("tiny"))


def test_what_was_asked_of_one_run_does_not_reach_the_next() -> None:
    with serving() as worker:
        worker.executor._obey(GoLive(1))
        worker.run("tiny")
        worker.executor._obey(CancelFlow(1))
        (ended,) = worker.run("tiny")
        assert isinstance(ended, Ended)
        assert ended.outcome.ending == "completed"


def test_a_cancel_that_comes_before_the_job_is_not_lost() -> None:
    with serving() as worker:
        worker.executor._obey(CancelFlow(1))
        (ended,) = worker.run("tiny")
        assert isinstance(ended, Ended)
        assert ended.outcome.ending == "cancelled"
