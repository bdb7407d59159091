"""What somebody may ask of an execution: 12 commands, a closed list."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from pyoco_server.domain.execution.events import Actor, ActorKind, Failure
from pyoco_server.domain.suggestions import nearest
from pyoco_server.errors import InvalidRequest

Text = Annotated[str, Meta(max_length=4_000)]
Id = Annotated[str, Meta(min_length=1, max_length=256)]


class ClaimedActor(Struct, frozen=True, forbid_unknown_fields=True):
    """What a sender may say of itself."""

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


class StartExecution(Command, frozen=True, kw_only=True):
    pass


class CancelExecution(Command, frozen=True, kw_only=True):
    reason: Text | None = None
    requested_by: Id | None = None


class ArchiveExecution(Command, frozen=True, kw_only=True):
    reason: Text | None = None


class NodeCommand(Command, frozen=True, kw_only=True):
    node_id: str


class MarkNodeReady(NodeCommand, frozen=True, kw_only=True):
    pass


class StartNode(NodeCommand, frozen=True, kw_only=True):
    attempt: Annotated[int, Meta(ge=1)] | None = None
    worker_id: Id | None = None
    run_id: Id | None = None


class HeldNodeCommand(NodeCommand, frozen=True, kw_only=True):
    """A word of whoever carries the node out; `worker_id` and `attempt`, if given, must be right."""

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


class _Claim(Struct):
    actor: ClaimedActor | None


def read_command(name: str, fields: dict[str, Any], actor: Actor) -> Command:
    """The command as somebody sent it, in snake_case or camelCase. Raises InvalidRequest.

    `actor` is who is known to have sent it. It is recorded beside what the sender claims to be.
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
    """`executionId` is read as `execution_id`; where both are given, the latter counts."""
    renamed = {"".join(f"_{c.lower()}" if c.isupper() else c for c in key): key for key in fields}
    return {name: fields[name] if name in fields else fields[key] for name, key in renamed.items()}
