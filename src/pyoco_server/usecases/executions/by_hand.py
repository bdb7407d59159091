"""Changes of executions that somebody asks for: carried out, then recorded in the audit trail."""

from typing import Any

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.executions.commands import AUDIT_ACTIONS, Command, NodeCommand
from pyoco_server.domain.executions.events import Actor, ActorKind
from pyoco_server.domain.executions.model import Execution
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.executions.commands import Commanded, CommandExecution
from pyoco_server.usecases.executions.create import CreateExecutions, Rerun


class ExecutionsByHand:
    def __init__(self, command: CommandExecution, create: CreateExecutions, trail: AuditTrail) -> None:
        self._command = command
        self._create = create
        self._trail = trail

    async def command(
        self, execution_id: str, command: Command, caller: Caller, key: str | None = None
    ) -> Commanded:
        """A command without effect, or a repeat, leaves no record. Raises as `CommandExecution`."""
        done = await self._command(execution_id, command, caller, key)
        if done.before is not None:
            node_id = command.node_id if isinstance(command, NodeCommand) else None
            await self._trail.record(
                caller,
                AUDIT_ACTIONS[type(command).__name__],
                ChangeTarget("execution", done.state.shown_id),
                _state(done.before, node_id),
                _state(done.state, node_id),
                claimed=_claim(command.actor),
            )
        return done

    async def rerun(self, wanted: Rerun, caller: Caller, actor: Actor, key: str | None = None) -> Commanded:
        done = await self._create.rerun(wanted, caller, actor, key)
        if not done.is_replayed:
            after = {"execution_id": done.state.shown_id, "from": wanted.start_from}
            target = ChangeTarget("execution", wanted.execution_id)
            await self._trail.record(caller, "execution.rerun", target, None, after)
        return done


def _state(execution: Execution, node_id: str | None) -> dict[str, Any]:
    """Without inputs and outputs; these are in the execution's own log."""
    state: dict[str, Any] = {"status": execution.status, "version": execution.version}
    if node_id is not None:
        node = execution.nodes.get(node_id)
        state["node"] = {"id": node_id, "status": None if node is None else node.status}
    return state


def _claim(actor: Actor) -> str | None:
    is_sender = actor.kind is ActorKind.USER and actor.id == actor.api_key_id
    return None if is_sender else ":".join(filter(None, (actor.kind.value, actor.id)))
