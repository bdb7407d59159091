"""`PyocoHttpClient`."""

import json
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import quote

import httpx2

from pyoco_server.domain.values import from_caller
from pyoco_server.errors import CancelTimedOut, GatewayUnreachable, UntrustedCertificate
from pyoco_server.http_client.answers import (
    BatchResult,
    GraphPage,
    GraphRecord,
    GraphSummary,
    Health,
    LogLine,
    Run,
    RunLogs,
    RunPage,
    RunSummary,
    RunTasks,
    Submitted,
    WheelDeleted,
    WheelEvent,
    WheelFile,
    WorkerPatched,
    WorkerRecord,
)
from pyoco_server.http_client.events import WorkflowEvents
from pyoco_server.http_client.executions import ExecutionCalls
from pyoco_server.http_client.runs import (
    MAX_PAGE,
    START,
    LogReader,
    RunEvent,
    RunWatch,
    given,
    in_order,
    is_terminal,
    run_path,
)
from pyoco_server.http_client.transport import JsonCalls, raise_refused, send_again_if_safe, transport_for

WATCH_SILENCE_SEC = 10.0
"""Heartbeat timeout of a watch."""
MAX_SENT_BYTES = 64 * 1024 * 1024
"""An upper bound for all calls; the server has a limit for each."""
_JSON_CALL = {"json", "headers"}
"""Options that `JsonCalls` supports."""


class PyocoHttpClient:
    """A client of one server. Refused requests raise `httpx2.HTTPStatusError`.

    It has `err_id`, `detail` and `advice`, and is also an `httpx.HTTPStatusError` if httpx is imported.

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
        headers = {api_key_header: api_key} if api_key else {}
        transport = transport_for(base_url)
        self._http = httpx2.Client(base_url=base_url, headers=headers, timeout=timeout, transport=transport)
        self._json = None if transport is None else JsonCalls(self._http, transport, timeout)
        self._watch_timeout = httpx2.Timeout(timeout, read=WATCH_SILENCE_SEC)
        self.events = WorkflowEvents(self._call)
        self.executions = ExecutionCalls(self._call, self._stream)

    def submit_run(
        self,
        flow_name: str,
        params: dict[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Submitted:
        body = {"flow_name": flow_name, "params": params or {}, "tag": tag, "tags": tags}
        submitted: Submitted = self._call(
            "POST",
            "/runs",
            is_safe=idempotency_key is not None,
            json=given(body),
            headers=given({"Idempotency-Key": idempotency_key}),
        )
        return submitted

    def submit_runs(self, runs: Sequence[dict[str, Any]]) -> BatchResult:
        """Submit up to 1,000 runs; `results` has an entry for each, in order."""
        answer: BatchResult = self._call("POST", "/runs/batch", is_safe=False, json={"runs": list(runs)})
        return answer

    def submit_run_yaml(
        self,
        workflow_yaml: str | bytes | Path,
        tag: str | None = None,
        flow_name: str = "workflow",
        *,
        idempotency_key: str | None = None,
    ) -> Submitted:
        """Submit a flow.yaml: its text, or a path."""
        content = workflow_yaml.read_bytes() if isinstance(workflow_yaml, Path) else workflow_yaml
        submitted: Submitted = self._call(
            "POST",
            "/runs/yaml",
            is_safe=idempotency_key is not None,
            files={"workflow": ("flow.yaml", content, "application/yaml")},
            data=given({"flow_name": flow_name, "tag": tag}),
            headers=given({"Idempotency-Key": idempotency_key}),
        )
        return submitted

    def get_run(self, run_id: str, include: Sequence[str] = ()) -> Run:
        wanted: dict[str, Any] = {"params": {"include": list(include)}} if include else {}
        run: Run = self._call("GET", run_path(run_id), **wanted)
        return run

    def get_run_with_records(self, run_id: str) -> Run:
        return self.get_run(run_id, include=["records"])

    def get_tasks(self, run_id: str) -> RunTasks:
        tasks: RunTasks = self._call("GET", run_path(run_id, "/tasks"))
        return tasks

    def get_logs(self, run_id: str, task: str | None = None, limit: int | None = None) -> list[LogLine]:
        """The stored log of a run, oldest line first, or its last `limit` lines."""
        if limit is not None and limit <= MAX_PAGE:
            return self.get_log_page(run_id, None, task, limit)["lines"]
        lines = in_order(list(self._log_reader(run_id, task).new_lines()))
        return lines if limit is None else lines[-limit:]

    def get_log_page(
        self, run_id: str, cursor: str | None = START, task: str | None = None, limit: int = MAX_PAGE
    ) -> RunLogs:
        """A page in storage order; continue at `next_cursor` while `has_more`.

        `cursor=None`: the last `limit` lines.
        """
        wanted = {"task": task, "limit": limit, "cursor": cursor}
        page: RunLogs = self._call("GET", run_path(run_id, "/logs"), params=given(wanted))
        return page

    def follow_logs(
        self, run_id: str, task: str | None = None, *, tail: int | None = None
    ) -> Iterator[LogLine]:
        """The log as it grows, until the run has ended; `tail`: start with the last `tail` lines.

        A task that prints more than can be stored at once is shown in excerpts (`is_excerpt`); its last
        lines follow when it has ended. Waits while the server is unavailable.
        """
        reader = self._log_reader(run_id, task)
        if tail is not None:
            last = self.get_log_page(run_id, None, task, max(1, tail))
            yield from last["lines"][-tail:] if tail else []
            reader = self._log_reader(run_id, task, last.get("next_cursor", START))
        yield from reader.follow(self.watch_run(run_id), task)

    def _log_reader(self, run_id: str, task: str | None, cursor: str = START) -> LogReader:
        return LogReader(lambda at: self.get_log_page(run_id, at, task), cursor)

    def list_runs(
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        *,
        full: bool = False,
        limit: int | None = None,
    ) -> list[RunSummary]:
        """The newest runs; `list_runs_vnext` returns pages."""
        wanted = {"status": status, "flow": flow, "tag": tag, "limit": limit, **_full(full=full)}
        runs: list[RunSummary] = self._call("GET", "/runs", params=given(wanted))
        return runs

    def list_runs_vnext(  # noqa: PLR0913 - the filters of the contract
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        *,
        full: bool = False,
        limit: int | None = None,
        updated_after: float | None = None,
        cursor: str | None = None,
        workflow_yaml_sha256: str | None = None,
    ) -> RunPage:
        """A page of runs. Pass `next_cursor` and the same filters for the next page."""
        wanted = {
            "status": status,
            "flow": flow,
            "tag": tag,
            "limit": limit,
            "updated_after": 0 if updated_after is None else updated_after,
            "cursor": cursor,
            "workflow_yaml_sha256": workflow_yaml_sha256,
            **_full(full=full),
        }
        page: RunPage = self._call("GET", "/runs", params=given(wanted))
        return page

    def watch_run(
        self,
        run_id: str,
        *,
        records: bool = False,
        since: float | None = None,
        timeout_sec: float | None = None,
    ) -> Iterator[RunEvent]:
        """Changes of a run as they happen, until it has ended or `timeout_sec` has passed.

        A broken connection is reopened after the last event received.
        """
        wanted = {"since": since, "include": "records" if records else None}
        yield from RunWatch(run_id, self._call, self._stream).events(wanted, timeout_sec)

    def cancel_run(
        self,
        run_id: str,
        wait: bool = False,  # noqa: FBT001, FBT002 - the contract's signature
        timeout_sec: float = 60.0,
        *,
        reason: str | None = None,
    ) -> Run:
        """Cancel a run; with `wait`, return when it has ended. Raises CancelTimedOut."""
        run: Run = self._call("POST", run_path(run_id, "/cancel"), json=given({"reason": reason}))
        if not wait or is_terminal({"snapshot": run}):
            return run
        for event in self.watch_run(run_id, timeout_sec=timeout_sec):
            if is_terminal(event):
                return event["snapshot"]
        raise CancelTimedOut(f"run {run_id} has not ended {timeout_sec:g} s after the cancel request")

    def get_workers(
        self,
        scope: str | None = None,
        state: str | None = None,
        *,
        include_hidden: bool | None = None,
        limit: int | None = None,
    ) -> list[WorkerRecord]:
        wanted = {"scope": scope, "state": state, "include_hidden": include_hidden, "limit": limit}
        workers: list[WorkerRecord] = self._call("GET", "/workers", params=given(wanted))
        return workers

    def patch_worker_hidden(self, worker_id: str, hidden: bool) -> WorkerPatched:  # noqa: FBT001
        path = f"/workers/{quote(worker_id, safe='')}"
        worker: WorkerPatched = self._call("PATCH", path, json={"hidden": hidden})
        return worker

    def get_metrics(self) -> str:
        return self._send("GET", "/metrics").text

    def get_health(self) -> Health:
        health: Health = self._call("GET", "/health")
        return health

    def list_wheels(self) -> list[WheelFile]:
        wheels: list[WheelFile] = self._call("GET", "/wheels")
        return wheels

    def list_wheel_history(
        self, limit: int | None = None, wheel_name: str | None = None, action: str | None = None
    ) -> list[WheelEvent]:
        """Newest first; `action` is `upload` or `delete`."""
        wanted = {"limit": limit, "wheel_name": wheel_name, "action": action}
        history: list[WheelEvent] = self._call("GET", "/wheels/history", params=given(wanted))
        return history

    def upload_wheel(
        self,
        wheel_file: str | Path | None = None,
        tags: Sequence[str] | None = None,
        *,
        filename: str | None = None,
        data: bytes | None = None,
        replace: bool = True,
        timeout: float = 600.0,
    ) -> WheelFile:
        """Register a wheel for workers with one of `tags`, or for all workers.

        Pass a path, or `filename` and `data`.
        """
        with _wheel_content(wheel_file, filename, data) as (name, content):
            wheel: WheelFile = self._call(
                "POST",
                "/wheels",
                is_safe=False,
                files={"wheel": (name, content, "application/octet-stream")},
                data={"tags": ",".join(tags or ()), "replace": str(replace).lower()},
                timeout=timeout,
            )
        return wheel

    def download_wheel(self, name: str, directory: str | Path) -> Path:
        """Save a wheel in `directory`; returns its path."""
        target = Path(directory) / name
        with self._http.stream("GET", _wheel(name)) as response:
            if response.is_error:
                response.read()
                raise_refused(response)
            with target.open("wb") as file:
                for chunk in response.iter_bytes():
                    file.write(chunk)
        return target

    def delete_wheel(self, name: str) -> WheelDeleted:
        deleted: WheelDeleted = self._call("DELETE", _wheel(name), is_safe=False)
        return deleted

    def put_graph(
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
        content, written_as = _graph_content(definition)
        summary: GraphSummary = self._call(
            "PUT", _graph(graph_id), content=content, headers={"Content-Type": content_type or written_as}
        )
        return summary

    def get_graph(self, graph_id: str, version: int | None = None) -> GraphRecord:
        """The newest version, or `version`."""
        graph: GraphRecord = self._call("GET", _graph(graph_id), params=given({"version": version}))
        return graph

    def list_graphs(self, cursor: str | None = None, limit: int | None = None) -> GraphPage:
        """A page of newest versions. Pass `next_cursor` for the next page."""
        page: GraphPage = self._call("GET", "/graphs", params=given({"cursor": cursor, "limit": limit}))
        return page

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, path: str, **options: Any) -> AbstractContextManager[httpx2.Response]:
        return self._http.stream("GET", path, timeout=self._watch_timeout, **options)

    def _call(self, method: str, path: str, *, is_safe: bool = True, **options: Any) -> Any:
        return self._send(method, path, is_safe=is_safe, **options).json()

    def _send(self, method: str, path: str, *, is_safe: bool = True, **options: Any) -> httpx2.Response:
        if "json" in options:
            options["json"] = from_caller(options["json"], "", MAX_SENT_BYTES)
        send: Callable[..., httpx2.Response] = self._http.request
        if self._json is not None and options.keys() <= _JSON_CALL:
            send = self._json.send
        try:
            response = send_again_if_safe(lambda: send(method, path, **options), is_safe=is_safe)
        except httpx2.TransportError as error:
            raise _unreachable(self._http.base_url, error) from error
        if not response.is_success:
            raise_refused(response)
        return response


@contextmanager
def _wheel_content(
    wheel_file: str | Path | None, filename: str | None, data: bytes | None
) -> Iterator[tuple[str, IO[bytes]]]:
    if wheel_file is not None and filename is None and data is None:
        with Path(wheel_file).open("rb") as file:
            yield Path(wheel_file).name, file
    elif wheel_file is None and filename is not None and data is not None:
        yield filename, BytesIO(data)
    else:
        raise TypeError("upload_wheel takes the path of a wheel, or filename= and data=")


def _unreachable(server: httpx2.URL, error: BaseException) -> GatewayUnreachable:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UntrustedCertificate(f"the certificate of {server} is refused: {cause.verify_message}")
        cause = cause.__cause__ or cause.__context__
    return GatewayUnreachable(f"no server answers at {server} ({type(error).__name__})")


def _wheel(name: str) -> str:
    return f"/wheels/{quote(name, safe='')}"


def _graph(graph_id: str) -> str:
    return f"/graphs/{quote(graph_id, safe='')}"


def _graph_content(definition: str | bytes | Path | dict[str, Any]) -> tuple[str | bytes, str]:
    """The text and its media type."""
    if isinstance(definition, dict):
        return json.dumps(definition), "application/json"
    if isinstance(definition, Path):
        is_json = definition.suffix.lower() == ".json"
        return definition.read_bytes(), "application/json" if is_json else "application/yaml"
    return definition, "application/yaml"


def _full(*, full: bool) -> dict[str, str]:
    return {"include": "full"} if full else {}
