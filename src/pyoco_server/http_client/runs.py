"""Runs: submitting, reading and following them."""

import json
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

from pyoco_server.http_client.answers import (
    BatchResult,
    Diagnosis,
    LogLine,
    Run,
    RunArtifacts,
    RunChange,
    RunDeleted,
    RunLogs,
    RunPage,
    RunSummary,
    RunTasks,
    Submitted,
)
from pyoco_server.http_client.calls import (
    Calls,
    PyocoError,
    ResultNotStored,
    RunCancelled,
    RunFailed,
    RunTimedOut,
    also,
    given,
    new_key,
    segment,
)
from pyoco_server.http_client.logs import START, LogReader, in_order
from pyoco_server.http_client.options import RunOptions, fields_of, form_fields_of

MAX_PAGE = 10_000
MIN_WATCH_SEC, MAX_WATCH_SEC = 1.0, 600.0
"""What the server allows."""
MIN_SILENCE_SEC = 0.05
WATCH_SILENCE_SEC = 10.0
"""Heartbeat timeout of a watch."""
_TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED"})


class RunEvent(RunChange):
    """`event` is `snapshot`, `log` or `heartbeat`."""

    event: str
    id: str


def run_path(run_id: str, rest: str = "") -> str:
    return f"/runs/{segment(run_id)}{rest}"


def _artifact(run_id: str, name: str) -> str:
    return run_path(run_id, f"/artifacts/{segment(name)}")


def is_terminal(event: Mapping[str, Any]) -> bool:
    return event.get("snapshot", {}).get("status") in _TERMINAL


class RunCalls(Calls):
    """Calls about runs."""

    async def run(
        self,
        flow: str,
        params: dict[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the run goes on, so no task is to be cancelled
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Submit a run, follow it and return its result.

        Raises `RunFailed`, `RunCancelled`, `ResultNotStored`, or `RunTimedOut` after `timeout` seconds; the
        run goes on then. Interrupted connections are opened again; the run is not submitted twice. Every
        error has the `run_id` once the run is submitted. The option `timeout_sec` limits each try.
        """
        deadline = _deadline(timeout)
        submitted = await self.submit_run(
            flow, params, tag, tags, idempotency_key=idempotency_key or new_key(), **options
        )
        run_id = submitted["run_id"]
        try:
            run = await self._ended(run_id, deadline)
        except PyocoError as error:
            error.run_id = run_id
            raise
        return await self._with_values(result_of(run, timeout), run)

    async def _with_values(self, result: Any, run: Run) -> Any:
        """With large values in place of the references to them."""
        places: Sequence[Sequence[str]] = run.get("values", ())  # older servers have none
        tasks = [place[1] for place in places if place[0] == "result"]
        found = {task: await self.get_value(result[task]) for task in tasks}
        return {**result, **found} if found else result

    async def get_value(self, reference: str | Mapping[str, Any]) -> Any:
        """The value that a reference of a run stands for, given whole or as the text of its `$ref`."""
        async with self._session.download(_value(reference)) as chunks:
            return json.loads(b"".join([chunk async for chunk in chunks]))

    async def download_value(self, reference: str | Mapping[str, Any], path: str | Path) -> Path:
        """Save the JSON of a value; returns the path."""
        await self._save(_value(reference), Path(path))
        return Path(path)

    async def list_artifacts(self, run_id: str) -> RunArtifacts:
        """The files that tasks of the run have saved."""
        artifacts: RunArtifacts = await self._call("GET", run_path(run_id, "/artifacts"))
        return artifacts

    async def get_artifact(self, run_id: str, name: str) -> bytes:
        async with self._session.download(_artifact(run_id, name)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def download_artifact(self, run_id: str, name: str, path: str | Path) -> Path:
        """Save an artifact in a file; returns the path."""
        await self._save(_artifact(run_id, name), Path(path))
        return Path(path)

    async def _save(self, url: str, target: Path) -> None:
        async with self._session.download(url) as chunks:
            with await self._session.blocking(lambda: target.open("wb")) as file:
                async for chunk in chunks:
                    await self._session.blocking(partial(file.write, chunk))

    async def submit_run(
        self,
        flow_name: str,
        params: dict[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Submitted:
        """Submit a run and return its id."""
        body = {"flow_name": flow_name, "params": params or {}, "tag": tag, "tags": tags}
        body |= fields_of(options)
        submitted: Submitted = await self._call(
            "POST",
            "/runs",
            is_safe=idempotency_key is not None,
            json=given(body),
            headers=given({"Idempotency-Key": idempotency_key}),
        )
        return submitted

    async def submit_runs(self, runs: Sequence[dict[str, Any]]) -> BatchResult:
        """Submit up to 1,000 runs; `results` has an entry for each, in order."""
        answer: BatchResult = await self._call(
            "POST", "/runs/batch", is_safe=False, json={"runs": list(runs)}
        )
        return answer

    async def submit_run_yaml(
        self,
        workflow_yaml: str | bytes | Path,
        tag: str | None = None,
        flow_name: str = "workflow",
        *,
        idempotency_key: str | None = None,
        **options: Unpack[RunOptions],
    ) -> Submitted:
        """Submit a flow.yaml: its text, or a path."""
        content: str | bytes
        if isinstance(workflow_yaml, Path):
            content = await self._session.blocking(workflow_yaml.read_bytes)
        else:
            content = workflow_yaml
        submitted: Submitted = await self._call(
            "POST",
            "/runs/yaml",
            is_safe=idempotency_key is not None,
            files={"workflow": ("flow.yaml", content, "application/yaml")},
            data=given({"flow_name": flow_name, "tag": tag}) | form_fields_of(options),
            headers=given({"Idempotency-Key": idempotency_key}),
        )
        return submitted

    async def get_run(self, run_id: str, include: Sequence[str] = ()) -> Run:
        wanted: dict[str, Any] = {"params": {"include": list(include)}} if include else {}
        run: Run = await self._call("GET", run_path(run_id), **wanted)
        return run

    async def get_run_with_records(self, run_id: str) -> Run:
        return await self.get_run(run_id, include=["records"])

    async def get_tasks(self, run_id: str) -> RunTasks:
        tasks: RunTasks = await self._call("GET", run_path(run_id, "/tasks"))
        return tasks

    async def get_diagnosis(self, run_id: str, language: Literal["en", "ja"] | None = None) -> Diagnosis:
        """Why a run waits, or why it failed, and what to do. `language`: of its texts; default: English."""
        headers = given({"Accept-Language": language})
        diagnosis: Diagnosis = await self._call("GET", run_path(run_id, "/diagnosis"), headers=headers)
        return diagnosis

    async def get_logs(self, run_id: str, task: str | None = None, limit: int | None = None) -> list[LogLine]:
        """The stored log of a run, oldest line first, or its last `limit` lines."""
        if limit is not None and limit <= MAX_PAGE:
            return (await self.get_log_page(run_id, None, task, limit))["lines"]
        lines = in_order([line async for line in self._log_reader(run_id, task).new_lines()])
        return lines if limit is None else lines[-limit:]

    async def get_log_page(
        self, run_id: str, cursor: str | None = START, task: str | None = None, limit: int = MAX_PAGE
    ) -> RunLogs:
        """A page in storage order; continue at `next_cursor` while `has_more`.

        `cursor=None`: the last `limit` lines.
        """
        wanted = {"task": task, "limit": limit, "cursor": cursor}
        page: RunLogs = await self._call("GET", run_path(run_id, "/logs"), params=given(wanted))
        return page

    async def follow_logs(
        self, run_id: str, task: str | None = None, *, tail: int | None = None
    ) -> AsyncGenerator[LogLine, None]:
        """The log as it grows, until the run has ended; `tail`: start with the last `tail` lines.

        A task that prints more than can be stored at once is shown in excerpts (`is_excerpt`); its last
        lines follow when it has ended. Waits while the server is unavailable.
        """
        reader = self._log_reader(run_id, task)
        if tail is not None:
            last = await self.get_log_page(run_id, None, task, max(1, tail))
            for line in last["lines"][-tail:] if tail else []:
                yield line
            reader = self._log_reader(run_id, task, last.get("next_cursor", START))
        async with aclosing(self.watch_run(run_id)) as events, aclosing(reader.follow(events, task)) as lines:
            async for line in lines:
                yield line

    def _log_reader(self, run_id: str, task: str | None, cursor: str = START) -> LogReader:
        return LogReader(lambda at: self.get_log_page(run_id, at, task), cursor)

    async def list_runs(
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        *,
        full: bool = False,
        limit: int | None = None,
        parent_run_id: str | None = None,
    ) -> list[RunSummary]:
        """The newest runs; `list_runs_vnext` returns pages."""
        wanted = {"status": status, "flow": flow, "tag": tag, "limit": limit, **_full(full=full)}
        wanted["parent_run_id"] = parent_run_id
        runs: list[RunSummary] = await self._call("GET", "/runs", params=given(wanted))
        return runs

    async def list_runs_vnext(  # noqa: PLR0913 - the filters of the contract
        self,
        status: str | None = None,
        flow: str | None = None,
        tag: str | None = None,
        *,
        full: bool = False,
        limit: int | None = None,
        updated_after: float | None = None,
        updated_before: float | None = None,
        cursor: str | None = None,
        workflow_yaml_sha256: str | None = None,
        parent_run_id: str | None = None,
    ) -> RunPage:
        """A page of runs. Pass `next_cursor` and the same filters for the next page."""
        wanted = {
            "status": status,
            "flow": flow,
            "tag": tag,
            "limit": limit,
            "updated_after": 0 if updated_after is None else updated_after,
            "updated_before": updated_before,
            "cursor": cursor,
            "workflow_yaml_sha256": workflow_yaml_sha256,
            "parent_run_id": parent_run_id,
            **_full(full=full),
        }
        page: RunPage = await self._call("GET", "/runs", params=given(wanted))
        return page

    async def watch_run(
        self,
        run_id: str,
        *,
        records: bool = False,
        since: float | None = None,
        timeout_sec: float | None = None,
    ) -> AsyncGenerator[RunEvent, None]:
        """Changes of a run as they happen, until it has ended or `timeout_sec` has passed.

        A broken connection is opened again after the last event received.
        """
        wanted = {"since": since, "include": "records" if records else None}
        async with aclosing(self._watched(run_id, wanted, _deadline(timeout_sec))) as events:
            async for event in events:
                yield event

    async def retry_run(
        self,
        run_id: str,
        *,
        from_: Literal["start", "failed"] = "start",
        params: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Submitted:
        """Run an ended run again, as a new run with the same input; `params` are changed.

        `from_="failed"`: the tasks that succeeded are not run again and keep their outputs. Raises `Conflict`
        if that is not possible, or if the run has not ended.
        """
        submitted: Submitted = await self._call(
            "POST",
            run_path(run_id, "/retry"),
            is_safe=idempotency_key is not None,
            json=given({"from": from_, "params": params}),
            headers=given({"Idempotency-Key": idempotency_key}),
        )
        return submitted

    async def cancel_run(
        self,
        run_id: str,
        wait: bool = False,  # noqa: FBT001, FBT002 - the contract's signature
        timeout_sec: float = 60.0,
        *,
        reason: str | None = None,
    ) -> Run:
        """Cancel a run; with `wait`, return when it has ended. Raises CancelTimedOut."""
        run: Run = await self._call("POST", run_path(run_id, "/cancel"), json=given({"reason": reason}))
        if not wait or is_terminal({"snapshot": run}):
            return run
        async with aclosing(self._watched(run_id, {}, _deadline(timeout_sec))) as events:
            async for event in events:
                if is_terminal(event):
                    return event["snapshot"]
        raise cancel_timed_out(run, timeout_sec)

    async def delete_run(self, run_id: str) -> RunDeleted:
        """Delete an ended run with its logs. Raises `Conflict` until it has ended."""
        deleted: RunDeleted = await self._call("DELETE", run_path(run_id), is_safe=False)
        return deleted

    async def _ended(self, run_id: str, deadline: float | None) -> Run:
        """The run when it has ended, or at the deadline."""
        async with aclosing(self._watched(run_id, {}, deadline, is_submitted=True)) as events:
            async for event in events:
                if is_terminal(event):
                    return event["snapshot"]
        return await self.get_run(run_id)

    async def _watched(
        self, run_id: str, wanted: dict[str, Any], deadline: float | None, *, is_submitted: bool = False
    ) -> AsyncGenerator[RunEvent, None]:
        last_event_id = ""

        async def connect() -> AsyncGenerator[RunEvent, None]:
            nonlocal last_event_id
            left = MAX_WATCH_SEC if deadline is None else deadline - time.monotonic()
            timeout = None if deadline is None else max(MIN_WATCH_SEC, min(MAX_WATCH_SEC, left))
            async with self._session.receive(
                run_path(run_id, "/watch"),
                silence_sec=max(MIN_SILENCE_SEC, min(WATCH_SILENCE_SEC, left)),
                params=given({**wanted, "timeout_sec": timeout}),
                headers=given({"Last-Event-ID": last_event_id or None}),
            ) as events:
                async for received in events:
                    last_event_id = received.id or last_event_id
                    event: Any = {"event": received.event, "id": received.id, **received.json()}
                    yield event

        async def has_ended() -> bool:
            return is_terminal({"snapshot": await self.get_run(run_id)})

        changes = self._reconnecting(
            connect, is_terminal, has_ended, deadline=deadline, has_begun=is_submitted
        )
        async with aclosing(changes) as events:
            async for event in events:
                yield event


def _value(reference: str | Mapping[str, Any]) -> str:
    return f"/values/{segment(reference if isinstance(reference, str) else str(reference['$ref']))}"


def _deadline(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _full(*, full: bool) -> dict[str, str]:
    return {"include": "full"} if full else {}


def result_of(run: Run, timeout_sec: float | None) -> Any:
    """The result of a completed run. Raises a `RunError` for all other runs."""
    about = {"run_id": run["run_id"], "run": run}
    where = f"run {run['run_id']} of {run['flow_name']}"
    if run["status"] == "FAILED":
        raise RunFailed(
            f"{where} failed: {run['error']}",
            err_id="ERR-PYOCO-0007",
            detail=run["error"],
            advice="get_logs() and get_tasks() of the run show what its tasks did",
            **about,
        )
    if run["status"] == "CANCELLED":
        reason = run["cancel_reason"]
        raise RunCancelled(
            f"{where} was cancelled" + (f": {reason}" if reason else ""), detail=reason, **about
        )
    if run["status"] != "COMPLETED":
        raise RunTimedOut(
            f"{where} has not ended after {timeout_sec or 0:g} s",
            detail=run["status"],
            advice="The run goes on: follow it with watch_run(), or cancel it with cancel_run()",
            **about,
        )
    if run.get("result_truncated"):
        raise ResultNotStored(
            f"{where} completed, but its result is too large to be stored",
            detail=run["warnings"],
            advice="Store large results in a file or an object store and return where they are",
            **about,
        )
    return run["result"]


def cancel_timed_out(run: Run, timeout_sec: float) -> PyocoError:
    from pyoco_server.errors import CancelTimedOut  # noqa: PLC0415 - importing a client stays cheap

    message = f"run {run['run_id']} has not ended {timeout_sec:g} s after the cancel request"
    entry = CancelTimedOut.entry
    return also(RunTimedOut, CancelTimedOut)(
        message, err_id=entry.err_id, detail=message, advice=entry.en, run_id=run["run_id"], run=run
    )
