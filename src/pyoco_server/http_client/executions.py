"""`PyocoHttpClient.executions`."""

from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import quote

import httpx2

from pyoco_server.http_client.runs import Call, OpenStream, given, pause, server_sent_events

Answer = dict[str, Any]
ENDED = frozenset({"EXECUTION_COMPLETED", "EXECUTION_FAILED", "EXECUTION_CANCELED"})


class ExecutionCalls:
    """Calls about executions. Answers are dictionaries."""

    def __init__(self, call: Call, stream: OpenStream) -> None:
        self._call = call
        self._stream = stream

    def create(
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
        return self._post("/executions", body, idempotency_key)

    def get(self, execution_id: str, at_sequence: int | None = None) -> Answer:
        """The current state, or the state after event `at_sequence`."""
        answer: Answer = self._call("GET", _path(execution_id), params=given({"at_sequence": at_sequence}))
        return answer

    def list(
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
        answer: Answer = self._call("GET", "/executions", params=given(wanted))
        return answer

    def events(self, execution_id: str, after: int = 0, limit: int | None = None) -> Answer:
        wanted = given({"after": after, "limit": limit})
        answer: Answer = self._call("GET", _path(execution_id, "/events"), params=wanted)
        return answer

    def waits(self, cursor: str | None = None, limit: int | None = None) -> Answer:
        """Waiting nodes, oldest first."""
        answer: Answer = self._call("GET", "/waits", params=given({"cursor": cursor, "limit": limit}))
        return answer

    def watch(self, execution_id: str, after: int = 0) -> Iterator[Answer]:
        """Events as they happen, until the execution has ended. A broken connection is reopened."""
        while True:
            try:
                for event in self._watch_once(execution_id, after):
                    after = event["sequence"]
                    yield event
                    if event["type"] in ENDED:
                        return
            except httpx2.TransportError:
                pause()
            else:
                if self.get(execution_id)["status"] != "ACTIVE":
                    return

    def command(
        self, execution_id: str, command: str, *, idempotency_key: str | None = None, **fields: Any
    ) -> Answer:
        """Send any command with its fields."""
        return self._post(_path(execution_id, "/commands"), {"command": command, **fields}, idempotency_key)

    def cancel(self, execution_id: str, reason: str | None = None) -> Answer:
        answer: Answer = self._call("POST", _path(execution_id, "/cancel"), json=given({"reason": reason}))
        return answer

    def archive(self, execution_id: str, reason: str | None = None) -> Answer:
        answer: Answer = self._call("POST", _path(execution_id, "/archive"), json=given({"reason": reason}))
        return answer

    def resume(
        self,
        execution_id: str,
        node_id: str,
        data: Any = None,
        resume_key: str | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Resume a waiting node; `data` becomes the output of a wait node."""
        path = _path(execution_id, f"/nodes/{quote(node_id, safe='')}/resume")
        return self._post(path, {"data": data, "resume_key": resume_key}, idempotency_key)

    def rerun(
        self,
        execution_id: str,
        start_from: Literal["start", "failed"] = "start",
        *,
        idempotency_key: str | None = None,
    ) -> Answer:
        """Start a new execution of the same graph version and input."""
        return self._post(_path(execution_id, "/rerun"), {"from": start_from}, idempotency_key)

    def _post(self, path: str, body: Answer, idempotency_key: str | None) -> Answer:
        answer: Answer = self._call(
            "POST",
            path,
            is_safe=idempotency_key is not None,
            json=given(body),
            headers=given({"Idempotency-Key": idempotency_key}),
        )
        return answer

    def _watch_once(self, execution_id: str, after: int) -> Iterator[Answer]:
        headers = {"Last-Event-ID": str(after)}
        with self._stream(_path(execution_id, "/watch"), headers=headers) as response:
            for event in server_sent_events(response):
                if event.event != "heartbeat":
                    data: Any = event.json()
                    yield data


def _path(execution_id: str, rest: str = "") -> str:
    """Any id stays one segment of the path."""
    return f"/executions/{quote(execution_id, safe='')}{rest}"
