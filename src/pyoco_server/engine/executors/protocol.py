"""The protocol between a worker and its executor processes: messages, framing, task records, tickets.

A worker sends a few jobs ahead. It may want to take back those queued behind a long flow, or those of a dead
executor. A busy executor cannot be asked. So every job has a ticket, a number in a pipe that both sides can
read; the kernel gives each number to one of them, and only that one may start the job.
"""

import os
import socket
import struct
import threading

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from pyoco_server.domain.runs.jobs import FlowOutcome, FlowProgress, Job, ResolvedJob
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.model import CodeWheel, TaskRecord
from pyoco_server.domain.runs.task_requests import TaskAnswer, TaskRequest
from pyoco_server.domain.traces import Span
from pyoco_server.engine.resolve import FlowNames
from pyoco_server.engine.values import ValueRoom

MAX_QUEUE = 8
"""Most flows of one executor, including the running one."""


class Limits(Struct, frozen=True, kw_only=True):
    max_runs: int = 0
    """A healthy executor is replaced after this many runs; 0: never."""
    max_rss_bytes: int = 0
    """A healthy executor is replaced when it has grown beyond this; 0: never."""
    grace_sec: float = 30.0
    """How long a task may take to stop after its timeout before its process is killed."""
    move_timeout_sec: float = 1.0
    """How long a flow that was taken back waits for another executor before its job is returned."""
    queue_timeout_sec: float = 0.01
    """Flows queued behind one that takes longer are taken back: another executor may be free."""
    ping_after_sec: float = 1.0
    """An executor that is busy with one flow for longer must confirm that it has all its jobs."""

    @property
    def max_queue(self) -> int:
        """If any flow may be the last of its process, nothing is queued behind it."""
        return 1 if self.max_runs or self.max_rss_bytes else MAX_QUEUE


class ExecutorSpec(Struct, frozen=True, kw_only=True):
    """What a new executor loads: the first message on its work channel."""

    flow_resolver: str
    version: str = ""
    """Version of the code to load; executors of another version are retired."""
    allowed_modules: tuple[str, ...] = ()
    """Modules that a flow.yaml may name; empty: any."""
    allowed_env: tuple[str, ...] = ()
    """Environment variables that a flow.yaml may read; empty: none."""
    room: ValueRoom = ValueRoom()
    """For the values of a run."""
    path: tuple[str, ...] = ()
    """Directories of synced code, prepended to the import path."""
    wheels: tuple[CodeWheel, ...] = ()
    """The wheels in `path`."""
    reports_memory: bool = False
    """Whether memory is measured after every run; only needed with a limit."""


class Ready(Struct, tag="ready"):
    """The flows are loaded."""

    flows: FlowNames


class Unusable(Struct, tag="unusable"):
    """The flows could not be loaded; the executor exits."""

    error: str


class RunFlow(Struct, tag="run"):
    """A job; to be run if the executor gets its ticket."""

    nth: int
    job: msgspec.Raw
    """Encoded before an executor is chosen, so that a job that cannot be encoded fails alone."""
    is_live: bool = False
    is_cancelled: bool = False
    after: int = 0
    """The job that was sent before this one."""


class Ping(Struct, tag="ping"):
    """Sent behind the jobs, to detect that the last ones never arrived."""

    after: int
    """As in RunFlow."""


class Lost(Struct, tag="lost"):
    """Jobs are missing, because a task has read them from the channel. The executor exits."""

    after: int
    """The last job that arrived."""


class Skipped(Struct, tag="skipped"):
    """The executor got no ticket for this job and did not run it."""

    nth: int


class Progressed(Struct, tag="progressed"):
    nth: int
    progress: FlowProgress
    spans: tuple[Span, ...] = ()


class Printed(Struct, tag="printed"):
    nth: int
    entries: list[LogEntry]


class Asked(Struct, tag="asked"):
    """A task waits for an answer of the worker."""

    nth: int
    number: int
    """Of the request, within its run."""
    request: TaskRequest


class TaskStarted(Struct, tag="task_started"):
    """A task with a timeout has started. The worker keeps the deadline: a task may block all threads."""

    nth: int
    task: str
    timeout_sec: float
    is_isolated: bool = False
    """The rest of the flow continues without it."""


class TaskEnded(Struct, tag="task_ended"):
    nth: int
    task: str
    took_sec: float


class Ended(Struct, tag="ended"):
    nth: int
    outcome: FlowOutcome
    entries: list[LogEntry] = field(default_factory=list)
    rss_bytes: int = 0
    busy_sec: float = 0.0
    """How long the executor could do nothing else."""
    leftovers: tuple[str, ...] = ()
    """State that the run left in the process and that cannot be restored. The executor exits after it."""
    spans: tuple[Span, ...] = ()


class CancelFlow(Struct, tag="cancel"):
    """Stop at the next task."""

    nth: int
    """The job of the executor: one channel may overtake the other."""


class GoLive(Struct, tag="live"):
    """Report progress and output from now on."""

    nth: int


class Written(Struct, tag="written"):
    """The last progress report is stored; the next may be sent."""

    nth: int


class Answered(Struct, tag="answered"):
    nth: int
    number: int
    answer: TaskAnswer


OfFlow = Progressed | Printed | Asked | TaskStarted | TaskEnded | Ended
FromExecutor = Ready | Unusable | Skipped | Lost | OfFlow
Control = CancelFlow | GoLive | Written | Answered

_encoder = msgspec.msgpack.Encoder()
_from_executor = msgspec.msgpack.Decoder(FromExecutor)
_control = msgspec.msgpack.Decoder(Control)
_work = msgspec.msgpack.Decoder(RunFlow | Ping)
_spec = msgspec.msgpack.Decoder(ExecutorSpec)
_job = msgspec.msgpack.Decoder(ResolvedJob)

HEADER = struct.Struct("!II")
"""A mark and the size of the payload. Bytes that a task has written into the channel have no mark."""
MARK = 0x70796F63
MAX_FRAME_BYTES = 256 * 1024 * 1024


class BrokenFrame(Exception):
    """The bytes in a channel are not a message of the other side."""


class JobsLost(Exception):
    """A task has read from the work channel."""

    def __init__(self, after: int) -> None:
        super().__init__(f"no job follows job {after}")
        self.after = after


class Unframable(Exception):
    """A message that cannot be sent: too large, or with a value that msgpack does not support."""


def frame(message: Struct) -> bytes:
    """Raises Unframable."""
    payload = _encoded(message)
    return HEADER.pack(MARK, len(payload)) + payload


def encode_job(job: Job) -> msgspec.Raw:
    """Raises Unframable."""
    return msgspec.Raw(_encoded(job))


def _encoded(message: Struct) -> bytes:
    try:
        payload = _encoder.encode(message)
    except Exception as error:
        raise Unframable(f"{type(error).__name__}: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise Unframable(f"{len(payload)} bytes encoded, at most {MAX_FRAME_BYTES} are allowed")
    return payload


def job_of(message: RunFlow) -> Job:
    job: Job = _job.decode(message.job)
    return job


def decode_from_executor(payload: bytes) -> FromExecutor:
    """Raises BrokenFrame."""
    try:
        message: FromExecutor = _from_executor.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BrokenFrame(f"unreadable message: {error}") from error
    return message


def end_of_frame(buffer: bytearray, start: int = 0) -> int:
    """The end of the frame at `start`, whose header has arrived. Raises BrokenFrame."""
    mark, size = HEADER.unpack_from(buffer, start)
    if mark != MARK:
        raise BrokenFrame("foreign bytes in the channel")
    if size > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a message of {size} bytes")
    return start + HEADER.size + int(size)


class Incoming:
    """The messages of one channel."""

    def __init__(self, channel: socket.socket) -> None:
        self._recv = channel.recv  # bound now: a task may replace the method of the class
        self._arrived = bytearray()
        self._last_job = 0

    def spec(self) -> ExecutorSpec | None:
        payload = self._next()
        return None if payload is None else _spec.decode(payload)

    def job(self) -> RunFlow | None:
        """Raises JobsLost."""
        while (message := self._next_work()) is not None:
            if message.after != self._last_job:
                raise JobsLost(self._last_job)
            if isinstance(message, RunFlow):
                self._last_job = message.nth
                return message
        return None

    def _next_work(self) -> RunFlow | Ping | None:
        try:
            payload = self._next()
            return None if payload is None else _work.decode(payload)
        except (BrokenFrame, msgspec.DecodeError) as error:
            raise JobsLost(self._last_job) from error

    def control(self) -> Control | None:
        payload = self._next()
        return None if payload is None else _control.decode(payload)

    def _next(self) -> bytes | None:
        """One message; None when the other side has closed the channel."""
        if not self._have(HEADER.size):
            return None
        end = end_of_frame(self._arrived)
        if not self._have(end):
            return None
        payload = bytes(self._arrived[HEADER.size : end])
        del self._arrived[:end]
        return payload

    def _have(self, size: int) -> bool:
        while len(self._arrived) < size:
            part = self._recv(1 << 16)
            if not part:
                return False
            self._arrived += part
        return True


class SentRecords:
    """The executor's side: progress carries only the task records that have changed.

    The end of a run carries all of them again, because a progress report may still be on its way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, TaskRecord] = {}

    def new_in(self, progress: FlowProgress) -> FlowProgress:
        with self._lock:
            new = {
                name: record
                for name, record in progress.task_records.items()
                if self._sent.get(name) is not record
            }
            self._sent.update(new)
        return replace(progress, task_records=new)


class KnownRecords:
    """The worker's side: completes progress with the records that arrived before."""

    def __init__(self) -> None:
        self._known: dict[str, TaskRecord] = {}
        self.latest = FlowProgress()

    def completed(self, progress: FlowProgress) -> FlowProgress:
        self._known.update(progress.task_records)
        in_order = {name: self._known[name] for name in progress.tasks if name in self._known}
        self.latest = replace(progress, task_records={**in_order, **self._known})
        return self.latest


_NUMBER = struct.Struct("=Q")
_ALL = 1 << 16
_os_read = os.read  # bound now: a task may replace the function of the module


class Tickets:
    """The worker's end of the ticket pipe."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        # The flags belong to the pipe, so they hold for the executor's descriptor, too.
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self._is_closed = False

    def for_executor(self) -> int:
        """A descriptor to send to the executor."""
        return os.dup(self._reading)

    def give(self, *numbers: int) -> None:
        """Before the jobs are sent. Numbers only grow."""
        os.write(self._writing, b"".join(map(_NUMBER.pack, numbers)))

    def take_back(self) -> set[int]:
        """All that the executor has not taken; now it never will."""
        if self._is_closed:
            return set()
        return {number for (number,) in _NUMBER.iter_unpack(_read(self._reading, _ALL))}

    def close(self) -> None:
        if not self._is_closed:  # otherwise the descriptors may have been reused
            self._is_closed = True
            os.close(self._reading)
            os.close(self._writing)


class ExecutorTickets:
    """The executor's end of the ticket pipe."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._last = 0

    def close(self) -> None:
        """Called in processes that a task has forked."""
        if self._reading >= 0:
            os.close(self._reading)
            self._reading = -1

    def take(self, number: int) -> bool:
        """Whether this executor may start the job. Jobs arrive in the order of their numbers."""
        while self._last < number:
            data = _read(self._reading, _NUMBER.size)
            if not data:
                return False
            (self._last,) = _NUMBER.unpack(data)
        return self._last == number


def _read(descriptor: int, size: int) -> bytes:
    """Never splits a number: the kernel reads a pipe under one lock."""
    try:
        return _os_read(descriptor, size)
    except BlockingIOError:
        return b""
