"""Which command is allowed when: two tables, and nothing else says so.

First the execution's phase decides, then the status of the node. What a table answers is `Verdict.ALLOW`,
`Verdict.SAME` (it is so already: fine, nothing happens) or the code of a refusal.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from pyoco_server.domain.execution import commands as c
from pyoco_server.domain.execution.state import NodeStatus, Phase


class Verdict(StrEnum):
    ALLOW = "allow"
    SAME = "same"


class Code(StrEnum):
    EXECUTION_EXISTS = "EXECUTION_EXISTS"
    EXECUTION_NOT_FOUND = "EXECUTION_NOT_FOUND"
    EXECUTION_NOT_STARTED = "EXECUTION_NOT_STARTED"
    EXECUTION_TERMINAL = "EXECUTION_TERMINAL"
    EXECUTION_NOT_TERMINAL = "EXECUTION_NOT_TERMINAL"
    EXECUTION_CANCEL_REQUESTED = "EXECUTION_CANCEL_REQUESTED"
    EXECUTION_FAIL_REQUESTED = "EXECUTION_FAIL_REQUESTED"
    NODE_NOT_FOUND = "NODE_NOT_FOUND"
    NODE_STATUS = "NODE_STATUS"
    NODE_CANCEL_REQUESTED = "NODE_CANCEL_REQUESTED"
    NODE_HELD_BY_ANOTHER = "NODE_HELD_BY_ANOTHER"
    WRONG_ATTEMPT = "WRONG_ATTEMPT"
    RETRY_NOT_DUE = "RETRY_NOT_DUE"
    RESUME_KEY_MISMATCH = "RESUME_KEY_MISMATCH"


class Rejected(Struct, frozen=True):
    """Why a command has no effect. It leaves no event."""

    code: Code
    message: str


_ALLOW, _SAME = Verdict.ALLOW, Verdict.SAME
Answer = Verdict | Code

_TERMINAL: Final[dict[Phase, Answer]] = {
    Phase.COMPLETED: Code.EXECUTION_TERMINAL,
    Phase.FAILED: Code.EXECUTION_TERMINAL,
    Phase.CANCELED: Code.EXECUTION_TERMINAL,
}
_NODE_COMMAND: Final[dict[Phase, Answer]] = {
    Phase.CREATED: Code.EXECUTION_NOT_STARTED,
    Phase.STARTED: _ALLOW,
    Phase.FAILING: Code.EXECUTION_FAIL_REQUESTED,
    Phase.CANCELLING: Code.EXECUTION_CANCEL_REQUESTED,
    **_TERMINAL,
}

_REPORT: Final[dict[Phase, Answer]] = {**_NODE_COMMAND, Phase.FAILING: _ALLOW}
"""What a node that still runs reports while the execution fails is kept: a re-run carries it over."""
REPORTS: Final = (c.ReportNodeProgress, c.SucceedNode, c.FailNode)

EXECUTION_GUARDS: Final[dict[type[c.Command], dict[Phase, Answer]]] = {
    c.CreateExecution: dict.fromkeys(Phase, Code.EXECUTION_EXISTS),
    c.StartExecution: {
        Phase.CREATED: _ALLOW,
        Phase.STARTED: _SAME,
        Phase.FAILING: _SAME,
        Phase.CANCELLING: Code.EXECUTION_CANCEL_REQUESTED,
        **_TERMINAL,
    },
    c.CancelExecution: {
        Phase.CREATED: _ALLOW,
        Phase.STARTED: _ALLOW,
        Phase.FAILING: _ALLOW,
        Phase.CANCELLING: _SAME,
        Phase.COMPLETED: _SAME,
        Phase.FAILED: _SAME,
        Phase.CANCELED: _SAME,
    },
    c.ArchiveExecution: {
        Phase.CREATED: Code.EXECUTION_NOT_TERMINAL,
        Phase.STARTED: Code.EXECUTION_NOT_TERMINAL,
        Phase.FAILING: Code.EXECUTION_NOT_TERMINAL,
        Phase.CANCELLING: Code.EXECUTION_NOT_TERMINAL,
        Phase.COMPLETED: _ALLOW,
        Phase.FAILED: _ALLOW,
        Phase.CANCELED: _ALLOW,
    },
    **dict.fromkeys(
        (
            c.MarkNodeReady,
            c.StartNode,
            c.PutNodeWaiting,
            c.RequestResumeNode,
            c.ResumeNode,
        ),
        _NODE_COMMAND,
    ),
    **dict.fromkeys(REPORTS, _REPORT),
}

NODE_GUARDS: Final[dict[type[c.Command], dict[NodeStatus, Verdict]]] = {
    c.MarkNodeReady: {NodeStatus.IDLE: _ALLOW, NodeStatus.READY: _SAME},
    c.StartNode: {NodeStatus.READY: _ALLOW, NodeStatus.RUNNING: _SAME},
    c.ReportNodeProgress: {NodeStatus.RUNNING: _ALLOW},
    c.PutNodeWaiting: {NodeStatus.RUNNING: _ALLOW},
    c.RequestResumeNode: {NodeStatus.WAITING: _ALLOW},
    c.ResumeNode: {NodeStatus.WAITING: _ALLOW},
    c.SucceedNode: {NodeStatus.RUNNING: _ALLOW},
    c.FailNode: {NodeStatus.RUNNING: _ALLOW, NodeStatus.WAITING: _ALLOW},
}

_REASONS: Final[dict[Code, str]] = {
    Code.EXECUTION_EXISTS: "this execution id is in use",
    Code.EXECUTION_NOT_STARTED: "the execution has not been started",
    Code.EXECUTION_TERMINAL: "the execution has ended",
    Code.EXECUTION_NOT_TERMINAL: "only an execution that has ended can be archived",
    Code.EXECUTION_CANCEL_REQUESTED: "a cancel of the execution was accepted",
    Code.EXECUTION_FAIL_REQUESTED: "the execution is failing and its nodes are being stopped",
}


def ask_phase(command: c.Command, phase: Phase) -> Verdict | Rejected:
    answer = EXECUTION_GUARDS[type(command)][phase]
    return answer if isinstance(answer, Verdict) else Rejected(answer, _REASONS[answer])


def ask_node(command: c.NodeCommand, status: NodeStatus) -> Verdict | Rejected:
    allowed = NODE_GUARDS[type(command)]
    if status in allowed:
        return allowed[status]
    wanted = " or ".join(known.value for known, verdict in allowed.items() if verdict is _ALLOW)
    return Rejected(
        Code.NODE_STATUS,
        f"{type(command).__name__} needs node {command.node_id!r} to be {wanted}; it is {status.value}",
    )
