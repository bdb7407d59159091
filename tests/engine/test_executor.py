"""An executor's two channels: a request reaches its run, whichever channel is faster."""

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
from support.builders import a_job
from support.waiting import PATIENCE_SEC


class _WithoutControl(Executor):
    """Does not read its control channel, whose end would end the process."""

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
        """Its messages until the flow has ended."""
        self.send(flow)
        messages = [self.receive()]
        while not isinstance(messages[-1], Ended):
            messages.append(self.receive())
        return messages

    def receive(self) -> FromExecutor:
        _, size = HEADER.unpack(self._work.recv(HEADER.size, socket.MSG_WAITALL))
        return decode_from_executor(self._work.recv(size, socket.MSG_WAITALL))


@contextmanager
def serving() -> Iterator[Worker]:
    (work, their_work), (control, their_control) = socket.socketpair(), socket.socketpair()
    work.settimeout(PATIENCE_SEC)
    tickets = Tickets()
    executor = _WithoutControl(their_work, their_control, ExecutorTickets(tickets.for_executor()))
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


def test_a_run_reports_progress_when_the_request_came_before_its_job() -> None:
    with serving() as worker:
        worker.executor._obey(GoLive(1))
        assert any(isinstance(message, Progressed) for message in worker.run("tiny"))


def test_a_request_for_one_run_does_not_reach_the_next() -> None:
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
