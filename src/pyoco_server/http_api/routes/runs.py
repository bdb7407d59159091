"""Runs: submit, read, watch, retry, cancel."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Header, Path, Query, Request, Response
from msgspec import UNSET
from pydantic import AfterValidator, Field, ValidationError

from pyoco_server.answers import BatchResult, Run, RunLogs, RunTasks, Submitted
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.flows import named_flow
from pyoco_server.domain.inputs import LABEL_RULE, MAX_LABEL, MAX_TAGS, Refused, decode_json, is_label
from pyoco_server.domain.runs.jobs import Submission, with_references
from pyoco_server.domain.runs.model import RunSnapshot, RunStatus
from pyoco_server.domain.runs.repeats import Retry
from pyoco_server.domain.values import MAX_PARAMS_BYTES
from pyoco_server.errors import (
    InvalidRequest,
    LimitReached,
    PyocoServerError,
    RequestTooLarge,
    RunNotFound,
    RunNotRetriable,
    TimersUnsupported,
    WorkflowTooLarge,
)
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import (
    Body,
    RunFields,
    StrictRoute,
    batch_items,
    batch_parts,
    json_body_docs,
    parse_json,
    places,
    problems_of,
    read_body,
)
from pyoco_server.http_api.errors import (
    EVERYWHERE,
    answers_like,
    answers_with,
    error_body,
    schema_of,
)
from pyoco_server.http_api.forms import FLOW_YAML_DOCS, read_flow_form
from pyoco_server.http_api.gateway import Gateway, gateway_of, levels_of
from pyoco_server.http_api.large_params import REST_BYTES, large_body, may_be_large
from pyoco_server.http_api.middleware import author_of, caller_of, header_of
from pyoco_server.http_api.views import (
    EventStream,
    json_response,
    run_events,
    run_view,
    snapshot_view,
    tasks_view,
)
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.concurrency import off_loop
from pyoco_server.usecases.ports.stores import Revision
from pyoco_server.usecases.runs.watch import WatchRequest

router = APIRouter(tags=["runs"], route_class=StrictRoute, responses=EVERYWHERE)

MAX_BODY_BYTES = MAX_PARAMS_BYTES + 64 * 1024
"""The params and the rest of the body."""
NO_LARGE: Mapping[str, AsyncIterator[bytes]] = {}
MAX_REVISION_DIGITS = 20
MAX_BATCH = 1000
MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_BATCH_PART_BYTES = 256 * 1024

Include = Annotated[list[Literal["records", "full", "all"]], Query(description="Include task_records")]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


def _label(text: str) -> str:
    if not is_label(text):
        raise ValueError(f"a tag must have {LABEL_RULE}")
    return text


Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), AfterValidator(_label)]
RunId = Annotated[str, Path(description="Run id returned by POST /runs")]
IDEMPOTENCY_KEY_DOCS = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Requests with the same key and body submit one run, for 24 hours.",
}


class RunSubmitRequest(RunFields):
    flow_name: str = Field(min_length=1, max_length=200, description="Name of the flow")
    params: dict[str, Any] = Field(
        default_factory=dict, description="Parameters of the flow, up to 256 KiB of JSON"
    )
    tag: Tag | None = Field(None, description="Tag of the workers that may run it")
    tags: list[Label] | None = Field(
        None, max_length=MAX_TAGS, description="Labels for filtering, up to 64 characters each"
    )


class RunBatchRequest(Body):
    runs: list[dict[str, Any]] = Field(min_length=1, max_length=MAX_BATCH, description="Bodies of POST /runs")


class RetryRequest(Body):
    from_: Literal["start", "failed"] = Field(
        "start", alias="from", description="`failed`: do not run tasks again that succeeded"
    )
    params: dict[str, Any] = Field(default_factory=dict, description="Params to change; others stay")


class CancelRequest(Body):
    reason: str | None = Field(None, max_length=2000, description="Stored with the run")


@router.post(
    "/runs",
    summary="Submit a run",
    responses={
        **answers_like(schema_of(Submitted)),
        **answers_with(RequestTooLarge, LimitReached, TimersUnsupported),
    },
    openapi_extra={**json_body_docs(RunSubmitRequest), "parameters": [IDEMPOTENCY_KEY_DOCS]},
)
@needs(Scope.SUBMIT)
async def submit_run(request: Request) -> Response:
    """Large params are stored beside the run."""
    gateway = gateway_of(request)
    if not may_be_large(request):
        return await _submit_one(request, await read_body(request, MAX_BODY_BYTES))
    most_bytes = max(MAX_BODY_BYTES, gateway.config.value_max_bytes + REST_BYTES)
    async with large_body(request, most_bytes) as body:
        if isinstance(body, bytes):
            return await _submit_one(request, body)
        return await _submit_one(request, body.request, body.values)


async def _submit_one(
    request: Request, body: bytes, large: Mapping[str, AsyncIterator[bytes]] = NO_LARGE
) -> Response:
    gateway, caller = gateway_of(request), caller_of(request)
    wanted = await parse_json(body, RunSubmitRequest)
    submission = await off_loop(len(body), _submission, wanted, caller, gateway.config.default_tag)
    if large:
        await gateway.levels.runs.submit.check_request(submission)  # before anything is stored
        submission = await gateway.levels.runs.store_request(submission, large)
    return await _submit(gateway, submission, _idempotency_key(request))


def _idempotency_key(request: Request) -> str | None:
    return header_of(request.scope, b"idempotency-key")


async def _submit(gateway: Gateway, submission: Submission, key: str | None) -> Response:
    """A repeated key returns the first answer, with the header `Idempotent-Replayed`."""
    if key is None:
        run_id, is_replayed = (await gateway.levels.runs.submit(submission)).run_id, False
    else:
        submitted = await gateway.levels.runs.submit_once(submission, key)
        run_id, is_replayed = submitted.run_id, submitted.is_replayed
    return _submitted(gateway, run_id, submission.tag, named_flow(submission), is_replayed=is_replayed)


def _submitted(gateway: Gateway, run_id: str, tag: str, flow: str | None, *, is_replayed: bool) -> Response:
    response = json_response(_accepted(gateway, run_id, tag, flow))
    if is_replayed:
        response.headers["Idempotent-Replayed"] = "true"
    else:
        gateway.metrics.submitted.inc()
    return response


def _accepted(gateway: Gateway, run_id: str, tag: str, flow: str | None) -> Submitted:
    doubt = gateway.levels.runs.list_workers.doubt_about(tag, flow)
    return Submitted(run_id, RunStatus.PENDING, UNSET if doubt is None else doubt.text)


@router.post(
    "/runs/batch",
    summary="Submit a batch of runs",
    responses={**answers_like(schema_of(BatchResult)), **answers_with(RequestTooLarge)},
    openapi_extra=json_body_docs(RunBatchRequest),
)
@needs(Scope.SUBMIT)
async def submit_batch(request: Request) -> Response:
    """One result per run, in order: `run_id` and `status`, or `error` and `http_status`."""
    gateway, caller = gateway_of(request), caller_of(request)
    body = await read_body(request, MAX_BATCH_BYTES, MAX_BATCH_PART_BYTES)
    runs = await off_loop(len(body), batch_items, body, RunBatchRequest, "runs", MAX_BATCH)
    results: list[Any] = []
    for some in batch_parts(runs, MAX_BATCH_PART_BYTES):
        submissions = []
        for run in some:
            submissions.append(await _batch_item(run, caller, gateway.config.default_tag))
            await asyncio.sleep(0)  # let other requests run
        answers = await gateway.levels.runs.submit_batch(submissions)
        results += [_batch_answer(answer, request, gateway) for answer in answers]
    accepted = sum(isinstance(result, Submitted) for result in results)
    gateway.metrics.submitted.inc(accepted)
    return json_response(BatchResult(accepted, len(results) - accepted, results))


def _batch_answer(
    answer: RunSnapshot | PyocoServerError, request: Request, gateway: Gateway
) -> Submitted | dict[str, Any]:
    if isinstance(answer, RunSnapshot):
        return _accepted(gateway, answer.run_id, answer.tag or "", answer.flow_name)
    return {"error": error_body(request, answer.entry, answer.detail), "http_status": int(answer.status)}


async def _batch_item(run: msgspec.Raw, caller: Caller, default_tag: str) -> Submission | PyocoServerError:
    """A malformed run is refused alone, not with the whole batch."""
    size = memoryview(run).nbytes
    if size > MAX_BODY_BYTES:
        return RequestTooLarge(f"the run has {size} bytes; at most {MAX_BODY_BYTES} are allowed")
    try:
        wanted = RunSubmitRequest.model_validate(await off_loop(size, decode_json, bytes(run)))
        _check_params(wanted.params, MAX_PARAMS_BYTES + 1)
    except ValidationError as error:
        return InvalidRequest(places(problems_of(error, RunSubmitRequest)))
    except Refused as error:
        return InvalidRequest(str(error))
    except RequestTooLarge as error:
        return error
    try:
        return await off_loop(size, _submission, wanted, caller, default_tag)
    except InvalidRequest as error:
        return error


@router.post(
    "/runs/yaml",
    summary="Submit a flow.yaml",
    responses={
        **answers_like(schema_of(Submitted)),
        **answers_with(WorkflowTooLarge, LimitReached, TimersUnsupported),
    },
    openapi_extra={**FLOW_YAML_DOCS, "parameters": [IDEMPOTENCY_KEY_DOCS]},
)
@needs(Scope.SUBMIT)
async def submit_yaml(request: Request) -> Response:
    """The file defines the flow; `flow.defaults` are its params."""
    gateway, caller = gateway_of(request), caller_of(request)
    form = await read_flow_form(request, gateway.config.workflow_yaml_max_bytes)
    # In a thread: checking a hostile file can take milliseconds of CPU.
    checked = await asyncio.to_thread(gateway.levels.check_flow_yaml, form.workflow)
    submission = with_references(
        Submission(
            flow_name=form.flow_name,
            params=checked.defaults,
            tag=form.tag or gateway.config.default_tag,
            tenant_id=caller.tenant_id,
            api_key_id=caller.api_key_id,
            workflow_yaml=checked.text,
            workflow_yaml_sha256=checked.sha256,
            workflow_yaml_bytes=checked.bytes,
            **form.run_fields.timing(),
        )
    )
    return await _submit(gateway, submission, _idempotency_key(request))


def _submission(wanted: RunSubmitRequest, caller: Caller, default_tag: str) -> Submission:
    """Raises InvalidRequest."""
    return with_references(
        Submission(
            flow_name=wanted.flow_name,
            params=wanted.params,
            tag=wanted.tag or default_tag,
            tags=None if wanted.tags is None else tuple(wanted.tags),
            tenant_id=caller.tenant_id,
            api_key_id=caller.api_key_id,
            **wanted.timing(),
        )
    )


def _check_params(params: dict[str, Any], body_size: int) -> None:
    if body_size > MAX_PARAMS_BYTES and len(msgspec.json.encode(params)) > MAX_PARAMS_BYTES:
        raise RequestTooLarge(f"params: more than {MAX_PARAMS_BYTES} bytes of JSON")


@router.get(
    "/runs/{run_id}",
    summary="Get a run",
    responses={**answers_like(schema_of(Run)), **answers_with(RunNotFound)},
)
@needs(Scope.READ)
async def get_run(request: Request, run_id: RunId, include: Include = []) -> Response:  # noqa: B006
    view = await levels_of(request).runs.read(run_id, caller_of(request))
    return json_response(run_view(view, include))


@router.get(
    "/runs/{run_id}/tasks",
    summary="Get the tasks of a run and their records",
    responses={**answers_like(schema_of(RunTasks)), **answers_with(RunNotFound)},
)
@needs(Scope.READ)
async def get_tasks(request: Request, run_id: RunId) -> Response:
    view = await levels_of(request).runs.read(run_id, caller_of(request))
    return json_response(tasks_view(view.snapshot))


@router.get(
    "/runs/{run_id}/logs",
    summary="Get the log of a run",
    responses={**answers_like(schema_of(RunLogs)), **answers_with(RunNotFound)},
)
@needs(Scope.READ)
async def get_logs(
    request: Request,
    run_id: RunId,
    *,
    task: Annotated[str | None, Query(description="Filter by task")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Maximum number of lines")] = 1000,
    cursor: Annotated[
        str | None, Query(description="`0`, or next_cursor of the previous page; default: the last lines")
    ] = None,
) -> Response:
    """Without `cursor`: the last lines, oldest first; `has_earlier` if there are lines before them.

    With `cursor`: a page of the whole log. Start at `0` and continue with `next_cursor` while `has_more`.
    Pages are in storage order; sort by `attempt` and `n` for the order of printing.
    The first and last 32 KiB of each task are kept, 1 MiB per run, for `PYOCO_LOGS_MAX_AGE_SEC`.
    A line with `cut_lines` and `cut_bytes` marks each cut.
    """
    read_logs, caller = levels_of(request).runs.read_logs, caller_of(request)
    if cursor is None:
        page = await read_logs.last(run_id, caller, task, limit)
    else:
        page = await read_logs.page(run_id, caller, task, limit, cursor)
    return json_response(RunLogs(run_id, page.lines, page.next_cursor, page.has_earlier, page.has_more))


@router.get(
    "/runs/{run_id}/watch",
    summary="Watch a run (server-sent events)",
    responses={200: {"content": {"text/event-stream": {}}}, **answers_with(RunNotFound)},
)
@needs(Scope.READ)
async def watch_run(
    request: Request,
    run_id: RunId,
    *,
    include: Include = [],  # noqa: B006
    since: Annotated[
        float | None,
        Query(allow_inf_nan=False, description="Skip snapshots up to this Unix time in seconds"),
    ] = None,
    timeout_sec: Annotated[
        float | None, Query(ge=1, le=600, description="End the stream after this time")
    ] = None,
    last_event_id: Annotated[str | None, Header(description="Continue after this event")] = None,
) -> Response:
    """`snapshot` events (id: the revision), `log` and `heartbeat` events; ends with the run."""
    levels = levels_of(request)
    watch = levels.runs.watch
    await watch.check(run_id, caller_of(request))
    wanted = WatchRequest(
        run_id=run_id,
        since=since,
        timeout=timeout_sec,
        last_revision=_revision(last_event_id or ""),
    )
    return EventStream(run_events(run_id, watch.watching(wanted), include, levels.clock))


def _revision(text: str) -> Revision | None:
    """An invalid Last-Event-ID counts as none."""
    is_number = text.isascii() and text.isdigit() and len(text) < MAX_REVISION_DIGITS
    return Revision(int(text)) if is_number else None


@router.post(
    "/runs/{run_id}/retry",
    summary="Run an ended run again",
    responses={
        **answers_like(schema_of(Submitted)),
        **answers_with(RunNotFound, RunNotRetriable, RequestTooLarge, LimitReached),
    },
    openapi_extra={
        **json_body_docs(RetryRequest, required=False),
        "parameters": [IDEMPOTENCY_KEY_DOCS],
    },
)
@needs(Scope.OPERATE, audit="run.retry")
async def retry_run(request: Request, run_id: RunId) -> Response:
    """Returns the id of the new run; `retried_from` and `retried_as` link the two.

    `from: failed` keeps the outputs of the tasks that succeeded. It requires a flow without switch and loop,
    the same tasks as then, and outputs that are plain JSON.
    """
    gateway, body = gateway_of(request), await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body, RetryRequest) if body.strip() else RetryRequest()
    _check_params(wanted.params, len(body))
    retry = Retry(from_failed=wanted.from_ == "failed", params=wanted.params, key=_idempotency_key(request))
    submitted, new = await gateway.levels.runs.retry(run_id, author_of(request), retry)
    return _submitted(gateway, submitted.run_id, new.tag, named_flow(new), is_replayed=submitted.is_replayed)


@router.post(
    "/runs/{run_id}/cancel",
    summary="Cancel a run",
    responses={**answers_like(schema_of(Run)), **answers_with(RunNotFound, RequestTooLarge)},
    openapi_extra=json_body_docs(CancelRequest, required=False),
)
@needs(Scope.OPERATE, audit="run.cancel")
async def cancel_run(request: Request, run_id: RunId) -> Response:
    """Returns the run as CANCELLING; it ends CANCELLED. A run that has ended is returned unchanged."""
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = await parse_json(body, CancelRequest) if body.strip() else CancelRequest()
    gateway = gateway_of(request)
    snapshot = await gateway.levels.runs.cancel(run_id, author_of(request), wanted.reason)
    if snapshot.status is RunStatus.CANCELLING:
        gateway.metrics.cancels.inc()
    return json_response(snapshot_view(snapshot, ()))
