"""`PyocoHttpClient` and `AsyncPyocoHttpClient`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Self

from pyoco_server.http_client.administration import ApiKeys, AsyncApiKeys, AuditCalls
from pyoco_server.http_client.alerts import (
    Alerts,
    AsyncAlerts,
    AsyncChannels,
    AsyncDeliveries,
    Channels,
    Deliveries,
)
from pyoco_server.http_client.answers import (
    FlowDetails,
    FlowPage,
    GraphPage,
    GraphPreview,
    GraphRecord,
    GraphSummary,
    Health,
    Queue,
    QueueList,
    WheelDeleted,
    WheelEvent,
    WheelFile,
    WorkerDeleted,
    WorkerPatched,
    WorkerRecord,
)
from pyoco_server.http_client.calls import NotFound, Session, blocking, blocking_iterator, given, segment
from pyoco_server.http_client.executions import (
    AsyncExecutions,
    AsyncWorkflowEvents,
    Executions,
    WorkflowEvents,
)
from pyoco_server.http_client.operations import AsyncBulk, AsyncDeadLetters, Bulk, DeadLetters, StatsCalls
from pyoco_server.http_client.runs import RunCalls
from pyoco_server.http_client.schedules import (
    AsyncFlows,
    AsyncLimits,
    AsyncSchedules,
    Document,
    Flows,
    Limits,
    Schedules,
    difference,
)
from pyoco_server.http_client.secrets import AsyncSecrets, AsyncVariables, Secrets, Variables


class ClientCalls(RunCalls, AuditCalls, StatsCalls):
    """All calls, on a session that blocks or one that is awaited."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.events = AsyncWorkflowEvents(session)
        self.executions = AsyncExecutions(session)
        self.schedules = AsyncSchedules(session)
        self.flows = AsyncFlows(session)
        self.limits = AsyncLimits(session)
        self.api_keys = AsyncApiKeys(session)
        self.dead_letters = AsyncDeadLetters(session)
        self.bulk = AsyncBulk(session)
        self.secrets = AsyncSecrets(session)
        self.variables = AsyncVariables(session)
        self.alerts = AsyncAlerts(session)
        self.channels = AsyncChannels(session)
        self.deliveries = AsyncDeliveries(session)

    async def get_workers(
        self,
        scope: str | None = None,
        state: str | None = None,
        *,
        include_hidden: bool | None = None,
        limit: int | None = None,
    ) -> list[WorkerRecord]:
        wanted = {"scope": scope, "state": state, "include_hidden": include_hidden, "limit": limit}
        workers: list[WorkerRecord] = await self._call("GET", "/workers", params=given(wanted))
        return workers

    async def list_flows(self, cursor: str | None = None, limit: int | None = None) -> FlowPage:
        """A page of the flows that workers report or that have runs. Pass `next_cursor` for the next page."""
        return await self.flows.list(cursor, limit)

    async def list_queues(self) -> QueueList:
        """The queues by tag: what waits and runs, the pause, live workers."""
        queues: QueueList = await self._call("GET", "/queues")
        return queues

    async def pause_queue(
        self, tag: str, reason: str | None = None, until: float | str | datetime | None = None
    ) -> Queue:
        """Let no worker take jobs of a tag, until `resume_queue` or until then. Active runs go on."""
        body = {"reason": reason, "until": until.isoformat() if isinstance(until, datetime) else until}
        queue: Queue = await self._call("POST", f"/queues/{segment(tag)}/pause", json=given(body))
        return queue

    async def resume_queue(self, tag: str) -> Queue:
        queue: Queue = await self._call("POST", f"/queues/{segment(tag)}/resume")
        return queue

    async def patch_worker_hidden(self, worker_id: str, hidden: bool) -> WorkerPatched:  # noqa: FBT001
        path = f"/workers/{segment(worker_id)}"
        worker: WorkerPatched = await self._call("PATCH", path, json={"hidden": hidden})
        return worker

    async def delete_worker(self, worker_id: str) -> WorkerDeleted:
        """Delete the record of a worker that is gone. Raises `Conflict` while it is alive."""
        deleted: WorkerDeleted = await self._call("DELETE", f"/workers/{segment(worker_id)}", is_safe=False)
        return deleted

    async def get_metrics(self) -> str:
        return (await self._send("GET", "/metrics")).text

    async def get_worker_metrics(self, worker_id: str) -> str:
        """Metrics of a worker as of its last heartbeat, in Prometheus format."""
        return (await self._send("GET", f"/workers/{segment(worker_id)}/metrics")).text

    async def get_health(self) -> Health:
        health: Health = await self._call("GET", "/health")
        return health

    async def list_wheels(self) -> list[WheelFile]:
        wheels: list[WheelFile] = await self._call("GET", "/wheels")
        return wheels

    async def list_wheel_history(
        self, limit: int | None = None, wheel_name: str | None = None, action: str | None = None
    ) -> list[WheelEvent]:
        """Newest first; `action` is `upload` or `delete`."""
        wanted = {"limit": limit, "wheel_name": wheel_name, "action": action}
        history: list[WheelEvent] = await self._call("GET", "/wheels/history", params=given(wanted))
        return history

    async def upload_wheel(
        self,
        wheel_file: str | Path | None = None,
        tags: Sequence[str] | None = None,
        *,
        filename: str | None = None,
        data: bytes | None = None,
        replace: bool = True,
        timeout: float = 600.0,  # noqa: ASYNC109 - of each send and receive
    ) -> WheelFile:
        """Register a wheel for workers with one of `tags`, or for all workers.

        Pass a path, or `filename` and `data`.
        """
        open_wheel = partial(_opened, wheel_file, filename, data)
        with await self._session.blocking(open_wheel) as (name, content):
            wheel: WheelFile = await self._call(
                "POST",
                "/wheels",
                is_safe=False,
                files={"wheel": (name, content, "application/octet-stream")},
                data={"tags": ",".join(tags or ()), "replace": str(replace).lower()},
                timeout=timeout,
            )
        return wheel

    async def download_wheel(self, name: str, directory: str | Path) -> Path:
        """Save a wheel in `directory`; returns its path."""
        target = Path(directory) / name
        await self._save(_wheel(name), target)
        return target

    async def delete_wheel(self, name: str) -> WheelDeleted:
        deleted: WheelDeleted = await self._call("DELETE", _wheel(name), is_safe=False)
        return deleted

    async def put_graph(
        self,
        graph_id: str,
        definition: str | bytes | Path | dict[str, Any],
        *,
        content_type: str | None = None,
    ) -> GraphSummary:
        """Register a graph: a definition, its text, or a path.

        Text is YAML unless `content_type` is `application/json`; files are YAML unless named `*.json`.
        An unchanged definition keeps its version.
        """
        content, written_as = await self._session.blocking(partial(_graph_content, definition))
        summary: GraphSummary = await self._call(
            "PUT", _graph(graph_id), content=content, headers={"Content-Type": content_type or written_as}
        )
        return summary

    async def preview_graph(self, definition: str | bytes | Path | dict[str, Any]) -> GraphPreview:
        """A graph as it would be stored. Raises InvalidRequest with all its problems."""
        content, written_as = await self._session.blocking(partial(_graph_content, definition))
        preview: GraphPreview = await self._call(
            "POST", "/graphs/preview", content=content, headers={"Content-Type": written_as}
        )
        return preview

    async def get_graph(self, graph_id: str, version: int | None = None) -> GraphRecord:
        """The newest version, or `version`."""
        graph: GraphRecord = await self._call("GET", _graph(graph_id), params=given({"version": version}))
        return graph

    async def list_graphs(self, cursor: str | None = None, limit: int | None = None) -> GraphPage:
        """A page of newest versions. Pass `next_cursor` for the next page."""
        page: GraphPage = await self._call("GET", "/graphs", params=given({"cursor": cursor, "limit": limit}))
        return page

    async def apply(self, document: Document, *, dry_run: bool = False) -> dict[str, Any]:
        """Create or change what `document` describes. `documents_in` reads a directory of them.

        Answers its `kind` and `id`, the `change` (`create`, `change` or `none`) and the `fields` that differ.
        With `dry_run`, nothing is written. Raises InvalidRequest for a graph or schedule that makes no sense.
        """
        stored = await self._stored(document)
        fields = difference(document, stored)
        if fields and document.kind in ("graphs", "schedules"):
            fields = difference(await self._checked(document), stored)
        if fields and not dry_run:
            await self._put(document)
        change = "create" if stored is None else "change" if fields else "none"
        return {"kind": document.kind, "id": document.id, "change": change, "fields": fields}

    async def _checked(self, document: Document) -> Document:
        """A graph as it would be stored. What a schedule starts may be applied before it."""
        if document.kind == "schedules":
            await self.schedules.check(document.body)
            return document
        preview = await self.preview_graph({**document.body, "id": document.id})
        definition = {key: value for key, value in preview["definition"].items() if key != "id"}
        return document._replace(body=definition)

    async def _stored(self, document: Document) -> dict[str, Any] | None:
        found: dict[str, Any] | None
        try:
            match document.kind:
                case "flows":
                    found = _set_flow(await self.flows.get(document.id))
                case "graphs":
                    found = (await self.get_graph(document.id))["definition"]
                case "limits":
                    found = await self.limits.get(document.id)
                case "alerts":
                    found = dict(await self.alerts.get(document.id))
                case "actions":
                    actions = await self.events.list_actions()
                    found = next((one for one in actions if one["key"] == document.id), None)
                case "templates":
                    found = await self.events.get_template(document.id)
                case _:
                    found = await self.schedules.get(document.id)
        except NotFound:
            return None
        return found

    async def _put(self, document: Document) -> None:
        match document.kind:
            case "flows":
                await self.flows.put(document.id, **document.body)
            case "graphs":
                await self.put_graph(document.id, document.body)
            case "actions":
                await self.events.put_action(document.id, document.body)
            case "templates":
                await self.events.put_template(document.id, document.body)
            case "limits":
                await self.limits.put(document.id, **document.body)
            case "alerts":
                await self.alerts.put(document.id, **document.body)
            case _:
                await self.schedules.put(document.id, **document.body)

    async def close(self) -> None:
        await self._session.close()


class AsyncPyocoHttpClient(ClientCalls):
    """A client of one server, for asyncio: the calls of `PyocoHttpClient`, awaited.

    `watch_run`, `follow_logs` and `executions.watch` are async generators; close one that you leave early
    (`contextlib.aclosing`). Use a client in one event loop.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        api_key_header: str = "X-API-Key",
        *,
        timeout: float = 10.0,
    ) -> None:
        from pyoco_server.http_client.transport import LoopSession  # noqa: PLC0415 - see below

        super().__init__(LoopSession(base_url, _headers(api_key, api_key_header), timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class PyocoHttpClient:
    """A client of one server. Thread-safe.

    Errors are `PyocoError`s with `status`, `err_id`, `detail` and `advice`. Those with a response are also
    `httpx2.HTTPStatusError`s, and `httpx.HTTPStatusError`s if httpx is imported.

    Idempotent calls (reading, cancelling, submitting with an idempotency key) are retried while the server is
    unavailable. All other calls are made once.

    Answers are dictionaries. Newer servers may add keys.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        api_key_header: str = "X-API-Key",
        *,
        timeout: float = 10.0,
    ) -> None:
        # Not at the top: the HTTP library takes longer to import than all the rest.
        from pyoco_server.http_client.transport import BlockingSession  # noqa: PLC0415

        self._calls = ClientCalls(BlockingSession(base_url, _headers(api_key, api_key_header), timeout))
        self.events = WorkflowEvents(self._calls.events)
        self.executions = Executions(self._calls.executions)
        self.schedules = Schedules(self._calls.schedules)
        self.flows = Flows(self._calls.flows)
        self.limits = Limits(self._calls.limits)
        self.api_keys = ApiKeys(self._calls.api_keys)
        self.dead_letters = DeadLetters(self._calls.dead_letters)
        self.bulk = Bulk(self._calls.bulk)
        self.secrets = Secrets(self._calls.secrets)
        self.variables = Variables(self._calls.variables)
        self.alerts = Alerts(self._calls.alerts)
        self.channels = Channels(self._calls.channels)
        self.deliveries = Deliveries(self._calls.deliveries)

    run = blocking(ClientCalls.run)
    submit_run = blocking(ClientCalls.submit_run)
    submit_runs = blocking(ClientCalls.submit_runs)
    submit_run_yaml = blocking(ClientCalls.submit_run_yaml)
    get_run = blocking(ClientCalls.get_run)
    get_run_with_records = blocking(ClientCalls.get_run_with_records)
    get_tasks = blocking(ClientCalls.get_tasks)
    get_diagnosis = blocking(ClientCalls.get_diagnosis)
    get_logs = blocking(ClientCalls.get_logs)
    get_log_page = blocking(ClientCalls.get_log_page)
    follow_logs = blocking_iterator(ClientCalls.follow_logs)
    list_runs = blocking(ClientCalls.list_runs)
    list_runs_vnext = blocking(ClientCalls.list_runs_vnext)
    watch_run = blocking_iterator(ClientCalls.watch_run)
    list_artifacts = blocking(ClientCalls.list_artifacts)
    get_artifact = blocking(ClientCalls.get_artifact)
    download_artifact = blocking(ClientCalls.download_artifact)
    retry_run = blocking(ClientCalls.retry_run)
    cancel_run = blocking(ClientCalls.cancel_run)
    delete_run = blocking(ClientCalls.delete_run)
    get_workers = blocking(ClientCalls.get_workers)
    list_flows = blocking(ClientCalls.list_flows)
    list_queues = blocking(ClientCalls.list_queues)
    stats = blocking(ClientCalls.stats)
    pause_queue = blocking(ClientCalls.pause_queue)
    resume_queue = blocking(ClientCalls.resume_queue)
    patch_worker_hidden = blocking(ClientCalls.patch_worker_hidden)
    delete_worker = blocking(ClientCalls.delete_worker)
    get_metrics = blocking(ClientCalls.get_metrics)
    get_worker_metrics = blocking(ClientCalls.get_worker_metrics)
    get_health = blocking(ClientCalls.get_health)
    list_wheels = blocking(ClientCalls.list_wheels)
    list_wheel_history = blocking(ClientCalls.list_wheel_history)
    upload_wheel = blocking(ClientCalls.upload_wheel)
    download_wheel = blocking(ClientCalls.download_wheel)
    get_value = blocking(ClientCalls.get_value)
    download_value = blocking(ClientCalls.download_value)
    delete_wheel = blocking(ClientCalls.delete_wheel)
    put_graph = blocking(ClientCalls.put_graph)
    preview_graph = blocking(ClientCalls.preview_graph)
    get_graph = blocking(ClientCalls.get_graph)
    list_graphs = blocking(ClientCalls.list_graphs)
    apply = blocking(ClientCalls.apply)
    list_audit = blocking(ClientCalls.list_audit)
    close = blocking(ClientCalls.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _set_flow(flow: FlowDetails) -> dict[str, Any] | None:
    """None: nothing is set."""
    return None if flow["updated_at"] is None else {**flow}


def _headers(api_key: str | None, header: str) -> Mapping[str, str]:
    return {header: api_key} if api_key else {}


def _opened(
    wheel_file: str | Path | None, filename: str | None, data: bytes | None
) -> AbstractContextManager[tuple[str, IO[bytes]]]:
    if wheel_file is not None and filename is None and data is None:
        return _named(Path(wheel_file).name, Path(wheel_file).open("rb"))
    if wheel_file is None and filename is not None and data is not None:
        return _named(filename, BytesIO(data))
    raise TypeError("upload_wheel takes the path of a wheel, or filename= and data=")


@contextmanager
def _named(name: str, file: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    with file:
        yield name, file


def _wheel(name: str) -> str:
    return f"/wheels/{segment(name)}"


def _graph(graph_id: str) -> str:
    return f"/graphs/{segment(graph_id)}"


def _graph_content(definition: str | bytes | Path | dict[str, Any]) -> tuple[str | bytes, str]:
    """The text and its media type."""
    if isinstance(definition, dict):
        return json.dumps(definition), "application/json"
    if isinstance(definition, Path):
        is_json = definition.suffix.lower() == ".json"
        return definition.read_bytes(), "application/json" if is_json else "application/yaml"
    return definition, "application/yaml"
