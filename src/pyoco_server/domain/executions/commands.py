"""The 12 commands of an execution, and the guard tables that decide when each is allowed."""

import hashlib
from enum import StrEnum
from typing import Annotated, Any, Final
from uuid import NAMESPACE_URL, uuid5

import msgspec
from msgspec import Meta, Struct

from pyoco_server.domain.executions.events import Actor, ActorKind, Failure
from pyoco_server.domain.executions.model import NodeStatus, Phase
from pyoco_server.domain.inputs import nearest
from pyoco_server.domain.large_values import Place
from pyoco_server.domain.runs.claims import claim_key
from pyoco_server.domain.traces import Trace
from pyoco_server.errors import InvalidRequest

Text = Annotated[str, Meta(max_length=4_000)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class ClaimedActor(Struct, frozen=True, forbid_unknown_fields=True):
    """The sender's claims about itself."""

    kind: ActorKind
    id: Id | None = None

    def sent_by(self, known: Actor) -> Actor:
        return Actor(self.kind, self.id, known.api_key_id, known.tenant_id)


class Command(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    actor: Actor
    correlation_id: Id | None = None


class CreateExecution(Command, frozen=True, kw_only=True):
    input: Any = None
    tenant_id: str | None = None
    api_key_id: str | None = None
    graph_version: int
    rerun_of: str | None = None
    given_id: str | None = None
    parent_execution_id: str | None = None
    parent_node_id: str | None = None
    graph_versions: dict[str, int] = {}
    children_to_rerun: dict[str, str] = {}
    """By node."""
    trace: Trace | None = None
    values: tuple[Place, ...] = ()
    """Where references to stored values stand in `input`."""


class StartExecution(Command, frozen=True, kw_only=True):
    pass


class CancelExecution(Command, frozen=True, kw_only=True):
    reason: Text | None = None
    requested_by: Id | None = None


class ArchiveExecution(Command, frozen=True, kw_only=True):
    reason: Text | None = None


class SendMessage(Command, frozen=True, kw_only=True):
    """Not one of the 12 of the contract: it has a path of its own."""

    name: Id
    data: Any = None


class NodeCommand(Command, frozen=True, kw_only=True):
    node_id: str


class MarkNodeReady(NodeCommand, frozen=True, kw_only=True):
    pass


class StartNode(NodeCommand, frozen=True, kw_only=True):
    attempt: Annotated[int, Meta(ge=1)] | None = None
    worker_id: Id | None = None
    run_id: Id | None = None


class HeldNodeCommand(NodeCommand, frozen=True, kw_only=True):
    """A report from the node's worker; `worker_id` and `attempt` must match if given."""

    attempt: Annotated[int, Meta(ge=1)] | None = None
    worker_id: Id | None = None


class ReportNodeProgress(HeldNodeCommand, frozen=True, kw_only=True):
    progress: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: Text | None = None
    metrics: dict[str, Any] | None = None


class PutNodeWaiting(HeldNodeCommand, frozen=True, kw_only=True):
    wait_key: Id | None = None
    prompt: Text | None = None
    deadline: float | None = None


class RequestResumeNode(NodeCommand, frozen=True, kw_only=True):
    resume_key: Id | None = None
    data: Any = None
    requested_by: Id | None = None


class ResumeNode(NodeCommand, frozen=True, kw_only=True):
    resume_key: Id | None = None
    data: Any = None


class SucceedNode(HeldNodeCommand, frozen=True, kw_only=True):
    output: Any = None


class FailNode(HeldNodeCommand, frozen=True, kw_only=True):
    error: Failure = Failure("the node failed")


COMMANDS: Final[dict[str, type[Command]]] = {
    command.__name__: command
    for command in (
        CreateExecution,
        StartExecution,
        CancelExecution,
        ArchiveExecution,
        MarkNodeReady,
        StartNode,
        ReportNodeProgress,
        PutNodeWaiting,
        RequestResumeNode,
        ResumeNode,
        SucceedNode,
        FailNode,
    )
}


AUDIT_ACTIONS: Final = {
    "StartExecution": "execution.start",
    "CancelExecution": "execution.cancel",
    "ArchiveExecution": "execution.archive",
    "MarkNodeReady": "node.ready",
    "StartNode": "node.start",
    "ReportNodeProgress": "node.progress",
    "PutNodeWaiting": "node.wait",
    "RequestResumeNode": "node.request_resume",
    "ResumeNode": "node.resume",
    "SucceedNode": "node.succeed",
    "FailNode": "node.fail",
    "SendMessage": "execution.message",
}
"""What the audit trail calls them. Creating an execution submits it, which is not a change."""


class _Claim(Struct):
    actor: ClaimedActor | None


def read_command(name: str, fields: dict[str, Any], actor: Actor) -> Command:
    """Read a received command, in snake_case or camelCase. Raises InvalidRequest.

    `actor` is the authenticated sender, recorded beside the sender's claims.
    """
    wanted = COMMANDS.get(name)
    if wanted is None or wanted is CreateExecution:
        known = ", ".join(known for known in COMMANDS if known != "CreateExecution")
        raise InvalidRequest(f"command {name!r} is not one of {known}")
    values: dict[str, Any] = {"actor": None, **snake_case(fields)}
    for field in values:
        if field not in wanted.__struct_fields__:
            raise InvalidRequest(_unknown(name, wanted, field))
    if isinstance(values.get("error"), str):
        values["error"] = {"message": values["error"]}
    try:
        claim = msgspec.convert({"actor": values["actor"]}, _Claim).actor
        values["actor"] = actor if claim is None else claim.sent_by(actor)
        return msgspec.convert(values, wanted)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{name}: {error}") from error


def _unknown(name: str, wanted: type[Command], field: str) -> str:
    known = wanted.__struct_fields__
    return f"{name}: unknown field {field[:64]!r}{nearest(field, known)}; known: {', '.join(known)}"


def snake_case(fields: dict[str, Any]) -> dict[str, Any]:
    """`executionId` is read as `execution_id`, which takes precedence if both are given."""
    renamed = {"".join(f"_{c.lower()}" if c.isupper() else c for c in key): key for key in fields}
    return {name: fields[name] if name in fields else fields[key] for name, key in renamed.items()}


# Guards: two tables decide which command is allowed, first by the phase of the execution, then by the status
# of the node. An entry is `Verdict.ALLOW`, `Verdict.SAME` (already in effect, no event) or a refusal code.


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
    EXECUTION_TOO_LARGE = "EXECUTION_TOO_LARGE"
    MESSAGE_NOT_EXPECTED = "MESSAGE_NOT_EXPECTED"
    MESSAGE_CONDITION_FAILED = "MESSAGE_CONDITION_FAILED"
    TOO_MANY_MESSAGES = "TOO_MANY_MESSAGES"


class Rejected(Struct, frozen=True):
    """A refused command; it leaves no event."""

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
"""Results of nodes still running while the execution fails are kept for a rerun."""
REPORTS: Final = (ReportNodeProgress, SucceedNode, FailNode)

EXECUTION_GUARDS: Final[dict[type[Command], dict[Phase, Answer]]] = {
    CreateExecution: dict.fromkeys(Phase, Code.EXECUTION_EXISTS),
    StartExecution: {
        Phase.CREATED: _ALLOW,
        Phase.STARTED: _SAME,
        Phase.FAILING: _SAME,
        Phase.CANCELLING: Code.EXECUTION_CANCEL_REQUESTED,
        **_TERMINAL,
    },
    CancelExecution: {
        Phase.CREATED: _ALLOW,
        Phase.STARTED: _ALLOW,
        Phase.FAILING: _ALLOW,
        Phase.CANCELLING: _SAME,
        Phase.COMPLETED: _SAME,
        Phase.FAILED: _SAME,
        Phase.CANCELED: _SAME,
    },
    SendMessage: {**_NODE_COMMAND, Phase.CREATED: _ALLOW},
    ArchiveExecution: {
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
            MarkNodeReady,
            StartNode,
            PutNodeWaiting,
            RequestResumeNode,
            ResumeNode,
        ),
        _NODE_COMMAND,
    ),
    **dict.fromkeys(REPORTS, _REPORT),
}

NODE_GUARDS: Final[dict[type[Command], dict[NodeStatus, Verdict]]] = {
    MarkNodeReady: {NodeStatus.IDLE: _ALLOW, NodeStatus.READY: _SAME},
    StartNode: {NodeStatus.READY: _ALLOW, NodeStatus.RUNNING: _SAME},
    ReportNodeProgress: {NodeStatus.RUNNING: _ALLOW},
    PutNodeWaiting: {NodeStatus.RUNNING: _ALLOW},
    RequestResumeNode: {NodeStatus.WAITING: _ALLOW},
    ResumeNode: {NodeStatus.WAITING: _ALLOW},
    SucceedNode: {NodeStatus.RUNNING: _ALLOW},
    FailNode: {NodeStatus.RUNNING: _ALLOW, NodeStatus.WAITING: _ALLOW},
}

_REASONS: Final[dict[Code, str]] = {
    Code.EXECUTION_EXISTS: "this execution id is in use",
    Code.EXECUTION_NOT_STARTED: "the execution has not been started",
    Code.EXECUTION_TERMINAL: "the execution has ended",
    Code.EXECUTION_NOT_TERMINAL: "only an ended execution can be archived",
    Code.EXECUTION_CANCEL_REQUESTED: "the execution is being cancelled",
    Code.EXECUTION_FAIL_REQUESTED: "the execution is failing and its nodes are being stopped",
}


def ask_phase(command: Command, phase: Phase) -> Verdict | Rejected:
    answer = EXECUTION_GUARDS[type(command)][phase]
    return answer if isinstance(answer, Verdict) else Rejected(answer, _REASONS[answer])


def ask_node(command: NodeCommand, status: NodeStatus) -> Verdict | Rejected:
    allowed = NODE_GUARDS[type(command)]
    if status in allowed:
        return allowed[status]
    wanted = " or ".join(known.value for known, verdict in allowed.items() if verdict is _ALLOW)
    return Rejected(
        Code.NODE_STATUS,
        f"{type(command).__name__} requires node {command.node_id!r} to be {wanted}; it is {status.value}",
    )


# Derived ids and digests, the same for a retry.


def keyed_command_id(tenant_id: str | None, scope: str, key: str) -> str:
    """The command id of an `Idempotency-Key`, in the scope of one execution (or of all creates)."""
    return str(uuid5(NAMESPACE_URL, f"pyoco:command:{scope}:{claim_key(tenant_id, key)}"))


def command_digest(command: Command) -> str:
    """Equal for equal commands, regardless of sender and formatting."""
    fields = msgspec.to_builtins(command)
    fields.pop("actor", None)
    fields.pop("correlation_id", None)
    wanted = [type(command).__name__, fields]
    return hashlib.sha256(msgspec.json.encode(wanted, order="deterministic")).hexdigest()
