"""The tools that change something. Each has to be allowed when the server is started."""

from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context
from pydantic import Field

from pyoco_server.http_client.calls import new_key
from pyoco_server.mcp.answers import answer, chosen
from pyoco_server.mcp.connection import Gateway
from pyoco_server.mcp.reading import ExecutionId, RunId

Key = Annotated[
    str | None,
    Field(description="Any text of your own. A repeated call with the same key changes nothing further"),
]


class Changing:
    """Each method is a tool; its docstring and arguments are what the agent is shown."""

    def __init__(self, gateway: Gateway) -> None:
        self._calls = gateway.calls

    async def submit_run(
        self,
        ctx: Context,
        flow: Annotated[str, Field(description="Name of the flow")],
        params: Annotated[dict[str, Any] | None, Field(description="As its params_schema requires")] = None,
        tag: Annotated[str | None, Field(description="Only workers with this tag may run it")] = None,
        idempotency_key: Key = None,
    ) -> str:
        """Start a run of a flow. It is queued; get_run shows what becomes of it."""
        async with self._calls(ctx) as calls:
            submitted = await calls.submit_run(
                flow, params, tag, idempotency_key=idempotency_key or new_key()
            )
        return answer(submitted)

    async def cancel_run(
        self,
        ctx: Context,
        run_id: RunId,
        reason: Annotated[str | None, Field(description="Shown with the run")] = None,
    ) -> str:
        """Cancel a run that has not ended. It ends as CANCELLED, whatever its flow returns later."""
        async with self._calls(ctx) as calls:
            run = await calls.cancel_run(run_id, reason=reason)
        return answer(chosen(run, "run_id", "status", "cancel_requested_at", "cancel_reason", "end_time"))

    async def retry_run(
        self,
        ctx: Context,
        run_id: RunId,
        start_from: Annotated[
            Literal["start", "failed"], Field(description="failed: tasks that succeeded keep their outputs")
        ] = "start",
        params: Annotated[dict[str, Any] | None, Field(description="Params that differ this time")] = None,
        idempotency_key: Key = None,
    ) -> str:
        """Run an ended run again, as a new run with the same input. Its tasks may have side effects."""
        async with self._calls(ctx) as calls:
            submitted = await calls.retry_run(
                run_id, from_=start_from, params=params, idempotency_key=idempotency_key or new_key()
            )
        return answer(submitted)

    async def answer_wait(
        self,
        ctx: Context,
        execution_id: ExecutionId,
        node_id: Annotated[str, Field(description="Id of the node that waits")],
        data: Annotated[Any, Field(description="The answer; it becomes the output of the node")] = None,
        wait_key: Annotated[str | None, Field(description="That of the wait, if it has one")] = None,
        idempotency_key: Key = None,
    ) -> str:
        """Answer a node that waits, in place of a person: the execution goes on with it."""
        async with self._calls(ctx) as calls:
            execution = await calls.executions.resume(
                execution_id, node_id, data, wait_key, idempotency_key=idempotency_key or new_key()
            )
        node = chosen(execution["nodes"][node_id], "status", "output", "resumed_at")
        return answer({**chosen(execution, "execution_id", "status", "phase"), "node": node})
