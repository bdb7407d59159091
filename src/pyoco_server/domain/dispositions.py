"""What becomes of a job when its handling has ended: the table of the contract, as values."""

from enum import StrEnum

from msgspec import Struct

NAK_DELAY_SEC = 2.0
"""How long a job waits after a passing fault before it is delivered again."""


class QueueAction(StrEnum):
    ACK = "ack"
    """Done: remove it from the queue."""
    NAK = "nak"
    """A passing fault: deliver it again after a delay."""
    TERM = "term"
    """It can never succeed: do not deliver it again."""
    LEAVE = "leave"
    """Another delivery owns the run; if that owner dies, AckWait brings the job back."""


class DlqReason(StrEnum):
    INVALID_JOB = "invalid_job"
    FLOW_NOT_FOUND = "flow_not_found"
    EXECUTION_ERROR = "execution_error"
    MAX_DELIVER = "max_deliver"


class Ending(StrEnum):
    """How the handling of one delivery can end."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXECUTION_ERROR = "execution_error"
    FLOW_NOT_FOUND = "flow_not_found"
    INVALID_JOB = "invalid_job"
    NATS_UNAVAILABLE = "nats_unavailable"
    NOT_STARTED = "not_started"
    """No executor became free soon enough: another worker may have one."""
    GIVEN_BACK = "given_back"
    """The worker stops and could not wait for the run's end: another one begins it anew."""
    ALREADY_TERMINAL = "already_terminal"
    WITHDRAWN = "withdrawn"
    """Its sender took the snapshot back, because it could not be sure that the job had arrived."""
    FENCED = "fenced"
    DUPLICATE_JOB = "duplicate_job"
    """The run is carried out under another job."""


class Disposition(Struct, frozen=True):
    action: QueueAction
    dlq: DlqReason | None = None
    delay: float = 0.0
    """Of a NAK: how many seconds until the next delivery."""


_TABLE = {
    Ending.COMPLETED: Disposition(QueueAction.ACK),
    Ending.CANCELLED: Disposition(QueueAction.ACK),
    Ending.EXECUTION_ERROR: Disposition(QueueAction.ACK, DlqReason.EXECUTION_ERROR),
    Ending.FLOW_NOT_FOUND: Disposition(QueueAction.ACK, DlqReason.FLOW_NOT_FOUND),
    Ending.INVALID_JOB: Disposition(QueueAction.TERM, DlqReason.INVALID_JOB),
    Ending.NATS_UNAVAILABLE: Disposition(QueueAction.NAK, delay=NAK_DELAY_SEC),
    Ending.NOT_STARTED: Disposition(QueueAction.NAK),
    Ending.GIVEN_BACK: Disposition(QueueAction.NAK),
    Ending.ALREADY_TERMINAL: Disposition(QueueAction.ACK),
    Ending.WITHDRAWN: Disposition(QueueAction.ACK),
    Ending.FENCED: Disposition(QueueAction.LEAVE),
    Ending.DUPLICATE_JOB: Disposition(QueueAction.ACK),
}


def disposition(ending: Ending, *, publish_execution_error: bool = True) -> Disposition:
    found = _TABLE[ending]
    if found.dlq is DlqReason.EXECUTION_ERROR and not publish_execution_error:
        return Disposition(found.action)
    return found


class DeadLetter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record of the dead letter stream. Params never go there: they may be secret."""

    timestamp: float
    reason: DlqReason
    error: str | None
    run_id: str | None = None
    flow_name: str | None = None
    tag: str | None = None
    tags: tuple[str, ...] | None = None
    worker_id: str | None = None
    num_delivered: int | None = None
    subject: str | None = None
    payload: str | None = None
