"""`PyocoHttpClient.executions`: the calls about executions."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol
from urllib.parse import quote

import httpx2

from pyoco_server.http_client.transport import raise_refused

Answer = dict[str, Any]
ENDED = frozenset({"EXECUTION_COMPLETED", "EXECUTION_FAILED", "EXECUTION_CANCELED"})


class Call(Protocol):
    def __call__(self, method: str, path: str, *, is_safe: bool = True, **options: Any) -> Any: ...


class ExecutionCalls:
    def __init__(
        self,
        call: Call,
        stream: Callable[[str, dict[str, str]], AbstractContextManager[httpx2.Response]],
        pause: Callable[[], None],
    ) -> None:
        """`stream` opens a stream of events; `pause` is made before a broken one is opened again."""
        self._call = call
        self._stream = stream
        self._pause = pause

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
        """The state now, or exactly as it was after an event."""
        answer: Answer = self._call("GET", _path(execution_id), params=_given({"at_sequence": at_sequence}))
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
        answer: Answer = self._call("GET", "/executions", params=_given(wanted))
        return answer

    def events(self, execution_id: str, after: int = 0, limit: int | None = None) -> Answer:
        wanted = _given({"after": after, "limit": limit})
        answer: Answer = self._call("GET", _path(execution_id, "/events"), params=wanted)
        return answer

    def waits(self, cursor: str | None = None, limit: int | None = None) -> Answer:
        """What waits for a person, oldest first."""
        answer: Answer = self._call("GET", "/waits", params=_given({"cursor": cursor, "limit": limit}))
        return answer

    def watch(self, execution_id: str, after: int = 0) -> Iterator[Answer]:
        """Every event as it happens, until the execution has ended. A broken connection is made anew."""
        while True:
            try:
                for event in self._watch_once(execution_id, after):
                    after = event["sequence"]
                    yield event
                    if event["type"] in ENDED:
                        return
            except httpx2.TransportError:
                self._pause()
            else:
                if self.get(execution_id)["status"] != "ACTIVE":
                    return

    def command(
        self, execution_id: str, command: str, *, idempotency_key: str | None = None, **fields: Any
    ) -> Answer:
        """Any of the commands, with its fields."""
        return self._post(_path(execution_id, "/commands"), {"command": command, **fields}, idempotency_key)

    def cancel(self, execution_id: str, reason: str | None = None) -> Answer:
        answer: Answer = self._call("POST", _path(execution_id, "/cancel"), json=_given({"reason": reason}))
        return answer

    def archive(self, execution_id: str, reason: str | None = None) -> Answer:
        answer: Answer = self._call("POST", _path(execution_id, "/archive"), json=_given({"reason": reason}))
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
        """Let a waiting node go on; `data` becomes the output of a wait node."""
        path = _path(execution_id, f"/nodes/{quote(node_id, safe='')}/resume")
        return self._post(path, {"data": data, "resume_key": resume_key}, idempotency_key)

    def rerun(
        self,
        execution_id: str,
        start_from: Literal["start", "failed"] = "start",
        *,
        idempotency_key: str | None = None,
    ) -> Answer:
        """A new execution of the same graph version and input."""
        return self._post(_path(execution_id, "/rerun"), {"from": start_from}, idempotency_key)

    def _post(self, path: str, body: Answer, idempotency_key: str | None) -> Answer:
        answer: Answer = self._call(
            "POST",
            path,
            is_safe=idempotency_key is not None,
            json=_given(body),
            headers=_given({"Idempotency-Key": idempotency_key}),
        )
        return answer

    def _watch_once(self, execution_id: str, after: int) -> Iterator[Answer]:
        with self._stream(_path(execution_id, "/watch"), {"Last-Event-ID": str(after)}) as response:
            if response.is_error:
                response.read()
                raise_refused(response)
            for event in httpx2.EventSource(response):
                if event.event != "heartbeat":
                    data: Any = event.json()
                    yield data


def _path(execution_id: str, rest: str = "") -> str:
    """Whatever is given as an id stays one segment of the path."""
    return f"/executions/{quote(execution_id, safe='')}{rest}"


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
