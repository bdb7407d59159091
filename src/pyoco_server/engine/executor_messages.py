"""What a worker and its executor processes say to each other, and how it travels over a socket."""

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
    job: Job
    is_live: bool = False
    is_cancelled: bool = False


class Progressed(Struct, tag="progressed"):
    progress: FlowProgress


class Printed(Struct, tag="printed"):
    entries: list[LogEntry]


class Ended(Struct, tag="ended"):
    outcome: FlowOutcome
    entries: list[LogEntry] = field(default_factory=list)
    rss_bytes: int = 0
    busy_sec: float = 0.0
    """How long the executor could do nothing else."""


class CancelFlow(Struct, tag="cancel"):
    """Stop at the next task."""

    nth: int
    """Which job of the executor is meant: the two channels may overtake each other."""


class GoLive(Struct, tag="live"):
    """Tell every step from now on."""

    nth: int


class Written(Struct, tag="written"):
    """The last step that was told has been written: the next may come."""

    nth: int


FromExecutor = Ready | Unusable | Progressed | Printed | Ended
Control = CancelFlow | GoLive | Written

_encoder = msgspec.msgpack.Encoder()
_from_executor = msgspec.msgpack.Decoder(FromExecutor)
_control = msgspec.msgpack.Decoder(Control)
_run = msgspec.msgpack.Decoder(RunFlow)
_spec = msgspec.msgpack.Decoder(ExecutorSpec)

HEADER = struct.Struct("!I")


def frame(message: Struct) -> bytes:
    payload = _encoder.encode(message)
    return HEADER.pack(len(payload)) + payload


def decode_from_executor(payload: bytes) -> FromExecutor:
    message: FromExecutor = _from_executor.decode(payload)
    return message


class Incoming:
    """The messages of one channel. What arrived with one is kept for the next."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._arrived = bytearray()

    def spec(self) -> ExecutorSpec | None:
        payload = self._next()
        return None if payload is None else _spec.decode(payload)

    def run(self) -> RunFlow | None:
        payload = self._next()
        return None if payload is None else _run.decode(payload)

    def control(self) -> Control | None:
        payload = self._next()
        return None if payload is None else _control.decode(payload)

    def _next(self) -> bytes | None:
        """One message; None when the other side has gone."""
        if not self._have(HEADER.size):
            return None
        end = HEADER.size + HEADER.unpack_from(self._arrived)[0]
        if not self._have(end):
            return None
        payload = bytes(self._arrived[HEADER.size : end])
        del self._arrived[:end]
        return payload

    def _have(self, size: int) -> bool:
        while len(self._arrived) < size:
            part = self._channel.recv(1 << 16)
            if not part:
                return False
            self._arrived += part
        return True
