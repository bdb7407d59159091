"""Messages between a worker and its executor processes, and their framing on a socket."""

import socket
import struct

import msgspec
from msgspec import Struct, field

from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress
from pyoco_server.domain.runs import CodeWheel
from pyoco_server.domain.task_logs import LogEntry
from pyoco_server.engine.values import MAX_VALUE_BYTES


class ExecutorSpec(Struct, frozen=True, kw_only=True):
    """What a new executor has to load before it is ready: the first message on its work channel."""

    flow_resolver: str
    version: str = ""
    """Changes with the code that is to be loaded: an executor of another version is not used any more."""
    allowed_modules: tuple[str, ...] = ()
    """Which modules a flow.yaml may name; empty: any."""
    allowed_env: tuple[str, ...] = ()
    """Which environment variables a flow.yaml may read; empty: none."""
    max_value_bytes: int = MAX_VALUE_BYTES
    """How much of a run's values an executor hands over; a snapshot holds no more."""
    path: tuple[str, ...] = ()
    """Directories in front of the import path: where synced code lies."""
    wheels: tuple[CodeWheel, ...] = ()
    """What lies there."""
    tells_memory: bool = False
    """Whether it measures its memory after every run; only needed where there is a limit."""


class Ready(Struct, tag="ready"):
    """The flows are loaded."""


class Unusable(Struct, tag="unusable"):
    """The flows could not be loaded; the executor ends."""

    error: str


class RunFlow(Struct, tag="run"):
    """To be run by whoever has its ticket."""

    nth: int
    job: msgspec.Raw
    """Encoded before an executor is chosen: a job that cannot be encoded fails alone."""
    is_live: bool = False
    is_cancelled: bool = False
    after: int = 0
    """The job that was sent before this one."""


class Ping(Struct, tag="ping"):
    """Sent behind the jobs, in case that the last ones never arrived."""

    after: int
    """As in RunFlow."""


class Lost(Struct, tag="lost"):
    """Jobs are missing: a task has read them from the channel. The executor ends."""

    after: int
    """It has begun none after this one."""


class Skipped(Struct, tag="skipped"):
    """The executor found no ticket for this job and did not run it."""

    nth: int


class Progressed(Struct, tag="progressed"):
    nth: int
    progress: FlowProgress


class Printed(Struct, tag="printed"):
    nth: int
    entries: list[LogEntry]


class TaskStarted(Struct, tag="task_started"):
    """A task with a timeout has started. The worker keeps the deadline: no thread here may get to run."""

    nth: int
    task: str
    timeout_sec: float
    is_isolated: bool = False
    """The rest of the flow goes on without it."""


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
    """What the run has left in the process and cannot be undone. The executor runs nothing after it."""


class CancelFlow(Struct, tag="cancel"):
    """Stop at the next task."""

    nth: int
    """Which job of the executor is meant: the two channels may overtake each other."""


class GoLive(Struct, tag="live"):
    """Report every step from now on."""

    nth: int


class Written(Struct, tag="written"):
    """The last reported step has been written: the next may come."""

    nth: int


FromExecutor = Ready | Unusable | Skipped | Lost | Progressed | Printed | TaskStarted | TaskEnded | Ended
Control = CancelFlow | GoLive | Written

_encoder = msgspec.msgpack.Encoder()
_from_executor = msgspec.msgpack.Decoder(FromExecutor)
_control = msgspec.msgpack.Decoder(Control)
_work = msgspec.msgpack.Decoder(RunFlow | Ping)
_spec = msgspec.msgpack.Decoder(ExecutorSpec)
_job = msgspec.msgpack.Decoder(Job)

HEADER = struct.Struct("!II")
"""A mark, and the size of what follows. Bytes that a task wrote into the channel have no mark."""
MARK = 0x70796F63
MAX_FRAME_BYTES = 256 * 1024 * 1024


class BrokenFrame(Exception):
    """The bytes of a channel are not the messages of its other side."""


class JobsLost(Exception):
    """A task has read from the work channel."""

    def __init__(self, after: int) -> None:
        super().__init__(f"no job follows job {after}")
        self.after = after


class Unframable(Exception):
    """A message that cannot be sent: it has a value that msgpack cannot hold, or it is too large."""


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
    """Where the frame at `start` ends, whose header has arrived. Raises BrokenFrame."""
    mark, size = HEADER.unpack_from(buffer, start)
    if mark != MARK:
        raise BrokenFrame("foreign bytes in the channel")
    if size > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a message of {size} bytes")
    return start + HEADER.size + int(size)


class Incoming:
    """The messages of one channel. What arrived with one is kept for the next."""

    def __init__(self, channel: socket.socket) -> None:
        self._recv = channel.recv  # bound now: a task may replace what the class has
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
        """One message; None when the other side has gone."""
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
