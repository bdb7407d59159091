"""`executions` and `events` of a client: executions, and the workflow events that start or resume them."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pyoco_server.http_client.calls import Answer, Calls, blocking, blocking_iterator, given, segment

ENDED = frozenset({"EXECUTION_COMPLETED", "EXECUTION_FAILED", "EXECUTION_CANCELED"})


class AsyncExecutions(Calls):
    """Calls about executions. Answers are dictionaries."""

    async def create(
        self,
        graph_id: str,
        input: Any = None,  # noqa: A002 - the name in the API
        *,
        execution_id: str | None = None,
        graph_version: int | None = None,
        start: bool = True,
        idempotency_key: str | None = None,
    ) -> Answer:
        body = {
            "graph_id": graph_id,
            "graph_version": graph_version,
            "input": input,
            "execution_id": execution_id,
            "start": start,
        }
        return await self._post("/executions", body, idempotency_key)

    async def get(self, execution_id: str, at_sequence: int | None = None) -> Answer:
        """The current state, or the state after event `at_sequence`."""
        return await self._dict("GET", _path(execution_id), params=given({"at_sequence": at_sequence}))

    async def list(
        self,
        status: str | None = None,
        graph_id: str | None = None,
        *,
        archived: bool | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Answer:
        wanted = {
            "status": status,
            "graph_id": graph_id,
            "archived": archived,
            "cursor": cursor,
            "limit": limit,
        }
        return await self._dict("GET", "/executions", params=given(wanted))

    async def events(self, execution_id: str, after: int = 0, limit: int | None = None) -> Answer:
        wanted = given({"after": after, "limit": limit})
        return await self._dict("GET", _path(execution_id, "/events"), params=wanted)

    async def items(
        self,
        execution_id: str,
        node_id: str,
        *,
        status: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> Answer:
        """The items of a map, in order."""
        path = _path(execution_id, f"/nodes/{segment(node_id)}/items")
        return await self._dict(
            "GET", path, params=given({"status": status, "cursor": cursor, "limit": limit})
        )

    async def waits(self, cursor: str | None = None, limit: int | None = None) -> Answer:
        """Waiting nodes, oldest first."""
        return await self._dict("GET", "/waits", params=given({"cursor": cursor, "limit": limit}))

    async def watch(self, execution_id: str, after: int = 0) -> AsyncGenerator[Answer, None]:
        """Events as they happen, until the execution has ended. A broken connection is opened again."""

        async def connect() -> AsyncGenerator[Answer, None]:
            nonlocal after
            path, headers = _path(execution_id, "/watch"), {"Last-Event-ID": str(after)}
            async with self._session.receive(path, headers=headers) as events:
                async for event in events:
                    if event.event != "heartbeat":
                        data: Answer = event.json()
                        after = data["sequence"]
                        yield data

        async def has_ended() -> bool:
            return bool((await self.get(execution_id))["status"] != "ACTIVE")

        async with aclosing(self._reconnecting(connect, _is_last, has_ended)) as events:
            async for event in events:
                yield event

    async def command(
        self, /, execution_id: str, command: str, *, idempotency_key: str | None = None, **fields: Any
    ) -> Answer:
        """Send any command with its fields."""
        return await self._post(
            _path(execution_id, "/commands"), {"command": command, **fields}, idempotency_key
        )

    async def cancel(self, execution_id: str, reason: str | None = None) -> Answer:
        return await self._dict("POST", _path(execution_id, "/cancel"), json=given({"reason": reason}))

    async def delete(self, execution_id: str) -> Answer:
        """It has to be archived; its id stays taken. Raises `Conflict`."""
        return await self._dict("DELETE", _path(execution_id), is_safe=False)

    async def archive(self, execution_id: str, reason: str | None = None) -> Answer:
        return await self._dict("POST", _path(execution_id, "/archive"), json=given({"reason": reason}))

    async def resume(
        self,
        execution_id: str,
        node_id: str,
        data: Any = None,
        resume_key: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Resume a waiting node; `data` becomes the output of a wait node."""
        path = _path(execution_id, f"/nodes/{segment(node_id)}/resume")
        return await self._post(path, {"data": data, "resume_key": resume_key}, idempotency_key)

    async def send_message(
        self, execution_id: str, name: str, data: Any = None, *, idempotency_key: str | None = None
    ) -> Answer:
        """Send a message to the nodes that wait for `name`; one that comes early is kept."""
        path = _path(execution_id, "/messages")
        return await self._post(path, {"name": name, "data": data}, idempotency_key)

    async def rerun(
        self,
        execution_id: str,
        start_from: Literal["start", "failed"] = "start",
        *,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Start a new execution of the same graph version and input."""
        return await self._post(_path(execution_id, "/rerun"), {"from": start_from}, idempotency_key)

    async def _post(self, path: str, body: Answer, idempotency_key: str | None) -> Answer:
        return await self._dict(
            "POST",
            path,
            is_safe=idempotency_key is not None,
            json=given(body),
            headers=given({"Idempotency-Key": idempotency_key}),
        )


def _path(execution_id: str, rest: str = "") -> str:
    return f"/executions/{segment(execution_id)}{rest}"


def _is_last(event: Answer) -> bool:
    return event["type"] in ENDED


# Workflow events

_EVENTS = "/api/workflow-events"
_TOKEN_HEADER = "x-workflow-event-token"  # noqa: S105 - its name


class AsyncWorkflowEvents(Calls):
    """Calls about workflow events. Answers are dictionaries."""

    async def send(self, /, *, token: str | None = None, **fields: Any) -> Answer:
        """Send an event: `template_id`, `event_name`, `idempotency_key`, `year`, `month`, `data` and so on.

        With an idempotency key it is retried while the server is unavailable.
        """
        return await self._dict(
            "POST",
            _EVENTS,
            is_safe=bool(fields.get("idempotency_key")),
            json=given(fields),
            headers={_TOKEN_HEADER: token} if token else {},
        )

    async def send_cloud_events(
        self, events: Sequence[Mapping[str, Any]], *, token: str | None = None
    ) -> list[Answer]:
        """Send up to 100 CloudEvents as a batch. One answer per event, in order, with its HTTP `status`.

        It is retried while the server is unavailable: `source` and `id` of an event are its idempotency key.
        """
        headers = {"Content-Type": "application/cloudevents-batch+json"}
        if token:
            headers[_TOKEN_HEADER] = token
        content = json.dumps(list(events), ensure_ascii=False, allow_nan=False).encode()
        results: list[Answer] = (await self._dict("POST", _EVENTS, content=content, headers=headers))[
            "results"
        ]
        return results

    async def resume(
        self,
        *,
        execution_id: str | None = None,
        node_id: str | None = None,
        wait_key: str | None = None,
        data: Any = None,
        idempotency_key: str | None = None,
        token: str | None = None,
    ) -> Answer:
        """Resume a waiting node with an event: pass `execution_id` and `node_id`, or a `wait_key`.

        If the node does not wait yet, the answer has `kept: True` and the node is resumed once it does.
        """
        return await self.send(
            token=token,
            execution_id=execution_id,
            node_id=node_id,
            wait_key=wait_key,
            data=data,
            idempotency_key=idempotency_key,
        )

    async def summary(self, ym: str, recent_limit: int | None = None) -> Answer:
        params: dict[str, Any] = {"ym": ym}
        if recent_limit is not None:
            params["recent_limit"] = recent_limit
        return await self._dict("GET", f"{_EVENTS}/summary", params=params)

    async def retry_jobs(self, limit: int | None = None) -> Answer:
        return await self._dict(
            "GET", f"{_EVENTS}/retry-jobs", params={} if limit is None else {"limit": limit}
        )

    async def drain(self, limit: int | None = None, *, force: bool = False) -> Answer:
        body: dict[str, Any] = {"force": force} if limit is None else {"force": force, "limit": limit}
        return await self._dict("POST", f"{_EVENTS}/retry-jobs/drain", is_safe=False, json=body)

    async def retry_job(self, job_id: str) -> Answer:
        return await self._dict("POST", f"{_EVENTS}/retry-jobs/{segment(job_id)}/retry", is_safe=False)

    async def discard_job(self, job_id: str) -> Answer:
        return await self._dict("POST", f"{_EVENTS}/retry-jobs/{segment(job_id)}/discard")

    async def replay(self, event_id: str) -> Answer:
        return await self._dict("POST", f"{_EVENTS}/{segment(event_id)}/replay", is_safe=False)

    async def notification_settings(self) -> Answer:
        return await self._dict("GET", f"{_EVENTS}/notification-settings")

    async def save_notification_settings(self, webhook_url: str) -> Answer:
        """An empty URL removes the stored one."""
        return await self._dict("POST", f"{_EVENTS}/notification-settings", json={"webhook_url": webhook_url})

    async def test_notification(self) -> Answer:
        return await self._dict("POST", f"{_EVENTS}/notification-settings/test", is_safe=False)

    async def list_templates(self) -> list[Answer]:
        return await self._items("/api/workflow-templates")

    async def get_template(self, template_id: str) -> Answer:
        return await self._dict("GET", _template(template_id))

    async def put_template(
        self, template_id: str, template: dict[str, Any], if_match: str | None = None
    ) -> Answer:
        """`if_match`: replace only the template with this `updated_at`."""
        headers = {} if if_match is None else {"If-Match": if_match}
        return await self._dict("PUT", _template(template_id), json=template, headers=headers)

    async def delete_template(self, template_id: str) -> Answer:
        return await self._dict("DELETE", _template(template_id), is_safe=False)

    async def start_template(self, /, template_id: str, **fields: Any) -> Answer:
        """Start it manually: `idempotency_key`, `year`, `month`, `mfcloud_url`, `notes`, `data`."""
        return await self._dict(
            "POST",
            f"{_template(template_id)}/start",
            is_safe=bool(fields.get("idempotency_key")),
            json=given(fields),
        )

    async def list_actions(self) -> list[Answer]:
        return await self._items("/api/workflow-actions")

    async def put_action(self, key: str, action: dict[str, Any]) -> Answer:
        return await self._dict("PUT", f"/api/workflow-actions/{segment(key)}", json=action)

    async def delete_action(self, key: str) -> Answer:
        return await self._dict("DELETE", f"/api/workflow-actions/{segment(key)}", is_safe=False)

    async def list_sources(self) -> list[Answer]:
        return await self._items("/api/workflow-sources")

    async def put_source(self, source_id: str, source: dict[str, Any]) -> Answer:
        return await self._dict("PUT", f"/api/workflow-sources/{segment(source_id)}", json=source)

    async def delete_source(self, source_id: str) -> Answer:
        return await self._dict("DELETE", f"/api/workflow-sources/{segment(source_id)}", is_safe=False)

    async def _items(self, path: str) -> list[Answer]:
        items: list[Answer] = (await self._dict("GET", path))["items"]
        return items


def _template(template_id: str) -> str:
    return f"/api/workflow-templates/{segment(template_id)}"


class Executions:
    """The same calls as `AsyncExecutions`, each until it is answered."""

    def __init__(self, calls: AsyncExecutions) -> None:
        self._calls = calls

    create = blocking(AsyncExecutions.create)
    get = blocking(AsyncExecutions.get)
    list = blocking(AsyncExecutions.list)
    events = blocking(AsyncExecutions.events)
    waits = blocking(AsyncExecutions.waits)
    watch = blocking_iterator(AsyncExecutions.watch)
    command = blocking(AsyncExecutions.command)
    cancel = blocking(AsyncExecutions.cancel)
    archive = blocking(AsyncExecutions.archive)
    delete = blocking(AsyncExecutions.delete)
    resume = blocking(AsyncExecutions.resume)
    send_message = blocking(AsyncExecutions.send_message)
    items = blocking(AsyncExecutions.items)
    rerun = blocking(AsyncExecutions.rerun)


class WorkflowEvents:
    """The same calls as `AsyncWorkflowEvents`, each until it is answered."""

    def __init__(self, calls: AsyncWorkflowEvents) -> None:
        self._calls = calls

    send = blocking(AsyncWorkflowEvents.send)
    send_cloud_events = blocking(AsyncWorkflowEvents.send_cloud_events)
    resume = blocking(AsyncWorkflowEvents.resume)
    summary = blocking(AsyncWorkflowEvents.summary)
    retry_jobs = blocking(AsyncWorkflowEvents.retry_jobs)
    drain = blocking(AsyncWorkflowEvents.drain)
    retry_job = blocking(AsyncWorkflowEvents.retry_job)
    discard_job = blocking(AsyncWorkflowEvents.discard_job)
    replay = blocking(AsyncWorkflowEvents.replay)
    notification_settings = blocking(AsyncWorkflowEvents.notification_settings)
    save_notification_settings = blocking(AsyncWorkflowEvents.save_notification_settings)
    test_notification = blocking(AsyncWorkflowEvents.test_notification)
    list_templates = blocking(AsyncWorkflowEvents.list_templates)
    get_template = blocking(AsyncWorkflowEvents.get_template)
    put_template = blocking(AsyncWorkflowEvents.put_template)
    delete_template = blocking(AsyncWorkflowEvents.delete_template)
    start_template = blocking(AsyncWorkflowEvents.start_template)
    list_actions = blocking(AsyncWorkflowEvents.list_actions)
    put_action = blocking(AsyncWorkflowEvents.put_action)
    delete_action = blocking(AsyncWorkflowEvents.delete_action)
    list_sources = blocking(AsyncWorkflowEvents.list_sources)
    put_source = blocking(AsyncWorkflowEvents.put_source)
    delete_source = blocking(AsyncWorkflowEvents.delete_source)
