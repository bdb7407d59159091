"""Workflow events: receive, replay, summaries, retry jobs and notification settings."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt
from starlette.requests import ClientDisconnect

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.events.audit import MAX_RECENT, AuditActor
from pyoco_server.domain.events.cloud_events import BATCHED, MAX_BATCH, REQUIRED, STRUCTURED
from pyoco_server.domain.events.views import (
    EventBatch,
    EventIgnored,
    EventResumed,
    EventStarted,
    EventSummary,
    NotificationSettingsState,
    NotificationTested,
    RetryJobChanged,
    RetryJobs,
    RetryJobsDrained,
)
from pyoco_server.errors import (
    EventFailed,
    InvalidEventToken,
    InvalidRequest,
    InvalidYearMonth,
    RequestTooLarge,
    UnsupportedMediaType,
    WebhookNotConfigured,
    WorkflowConflict,
    WorkflowNotFound,
)
from pyoco_server.http_api.access import ScopedRoute, needs
from pyoco_server.http_api.bodies import Body, StrictRoute, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, any_schema_of, schema_of
from pyoco_server.http_api.gateway import Gateway, gateway_of, levels_of
from pyoco_server.http_api.middleware import author_of, caller_of, caller_or_refusal
from pyoco_server.http_api.views import answer_view, job_view, json_response, queue_view
from pyoco_server.usecases.events.attempts import Answer, Attempt, Origin, Outcome
from pyoco_server.usecases.events.receive import Arrival, Credentials, ReceiveEvent
from pyoco_server.usecases.events.retry import DEFAULT_LIMIT, MAX_LIMIT

EVENT_BODY_BYTES = 1024 * 1024
SETTINGS_BODY_BYTES = 16 * 1024
DEFAULT_SHOWN = 20
MAX_SHOWN = 200

router = APIRouter(tags=["workflow events"], route_class=StrictRoute, responses=EVERYWHERE)
receiving = APIRouter(
    tags=["workflow events"],
    route_class=ScopedRoute,
    responses={
        **EVERYWHERE,
        **answers_like(any_schema_of(EventStarted, EventResumed, EventIgnored, EventBatch)),
        **answers_with(
            InvalidYearMonth,
            InvalidEventToken,
            WorkflowNotFound,
            WorkflowConflict,
            RequestTooLarge,
            UnsupportedMediaType,
            EventFailed,
        ),
    },
)


class WorkflowEvent(BaseModel):
    """All fields are optional; a CloudEvent may be sent instead."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    template_id: str | None = None
    event_name: str | None = None
    idempotency_key: str | int | None = None
    event_id: str | int | None = None
    year: int | str | None = None
    month: int | str | None = None
    source: str | None = None
    mfcloud_url: str | None = None
    notes: str | None = None
    data: Any = None
    execution_id: str | None = Field(None, description="With node_id: the node to resume")
    node_id: str | None = None
    wait_key: str | int | None = Field(None, description="Key of the waiting node to resume")


def _event_docs() -> dict[str, Any]:
    docs = json_body_docs(WorkflowEvent, required=False)
    cloud_event = {"type": "object", "required": list(REQUIRED), "description": "A CloudEvent 1.0"}
    each = {"description": "A CloudEvent 1.0; an invalid one is refused alone"}
    docs["requestBody"]["content"] |= {
        STRUCTURED: {"schema": cloud_event},
        BATCHED: {"schema": {"type": "array", "maxItems": MAX_BATCH, "items": each}},
    }
    return docs


class DrainRequest(Body):
    limit: StrictInt = DEFAULT_LIMIT
    force: StrictBool = False


class NotificationSettingsRequest(Body):
    webhook_url: str = Field(description="Empty: remove the saved URL")


@receiving.post(
    "/api/workflow-events",
    summary="Receive an event",
    openapi_extra=_event_docs(),
)
@needs(Scope.SUBMIT, other_credentials=True)
async def receive_event(request: Request) -> Response:
    """Starts a template or resumes a waiting node, once per idempotency key.

    Accepts an event as JSON, a signed webhook, or CloudEvents 1.0: structured, binary, or a batch of up to
    100 (`application/cloudevents-batch+json`), which is answered with `results`.
    """
    receive = levels_of(request).events.receive
    attempt = receive.begin(origin_of(request))
    answer = await receive.audited(attempt, _receive(receive, attempt, request))
    return answered(gateway_of(request), request, answer)


async def _receive(receive: ReceiveEvent, attempt: Attempt, request: Request) -> Outcome:
    """Credentials first: the body of an unauthenticated sender is not read."""
    credentials = _credentials(request)
    sender = await receive.admit(attempt, credentials)
    body = await _whole_body(request)
    arrival = Arrival(sender=sender, headers=request.headers, body=body, source=credentials.source)
    return await receive(attempt, arrival)


@receiving.post(
    "/api/workflow-events/{event_id}/replay",
    summary="Replay an event",
    responses=answers_with(WorkflowNotFound),
)
@needs(Scope.OPERATE, audit="event.replay")
async def replay_event(request: Request, event_id: str) -> Response:
    """An event that succeeded is started again; for any other, its key is retried."""
    answer = await levels_of(request).events.receive.replay(event_id, author_of(request), origin_of(request))
    return answered(gateway_of(request), request, answer)


@router.get(
    "/api/workflow-events/summary",
    summary="Monthly event summary",
    responses=answers_like(schema_of(EventSummary)),
)
@needs(Scope.READ)
async def summary(
    request: Request,
    *,
    ym: Annotated[str, Query(description="YYYY-MM")],
    recent_limit: Annotated[int, Query(ge=1, le=MAX_RECENT)] = DEFAULT_SHOWN,
) -> Response:
    summarise = levels_of(request).events.summarise
    return json_response(await summarise(caller_of(request).tenant_id, ym, recent_limit))


@router.get(
    "/api/workflow-events/retry-jobs",
    summary="List retry jobs",
    responses=answers_like(schema_of(RetryJobs)),
)
@needs(Scope.READ)
async def list_retry_jobs(
    request: Request, *, limit: Annotated[int, Query(description="1 to 200")] = DEFAULT_SHOWN
) -> Response:
    """The `data` of events is shown up to 1 MiB in total; `data_omitted` jobs have null instead."""
    queue = levels_of(request).events.retry_queue
    shown = await queue.shown(caller_of(request).tenant_id, _clamped(limit, MAX_SHOWN))
    return json_response({"status": "ok", **queue_view(shown)})


@router.post(
    "/api/workflow-events/retry-jobs/drain",
    summary="Drain the retry queue",
    responses={
        **answers_like(schema_of(RetryJobsDrained)),
        **answers_with(WorkflowConflict, RequestTooLarge),
    },
    openapi_extra=json_body_docs(DrainRequest, required=False),
)
@needs(Scope.OPERATE, audit="retry_job.drain")
async def drain_retry_jobs(request: Request) -> Response:
    """Retries the due jobs; with `force`, all of them."""
    body = await read_body(request, SETTINGS_BODY_BYTES)
    wanted = await parse_json(body, DrainRequest) if body.strip() else DrainRequest()
    drain = levels_of(request).events.drain_retry_jobs
    done = await drain(_clamped(wanted.limit, MAX_LIMIT), author_of(request), force=wanted.force)
    return json_response({**done, "queue": queue_view(done["queue"])})


@router.post(
    "/api/workflow-events/retry-jobs/{job_id}/retry",
    summary="Restart a retry job",
    responses={
        **answers_like(schema_of(RetryJobChanged)),
        **answers_with(WorkflowNotFound, WorkflowConflict),
    },
)
@needs(Scope.OPERATE, audit="retry_job.retry")
async def retry_job(request: Request, job_id: str) -> Response:
    queue = levels_of(request).events.retry_queue
    return json_response({"status": "ok", "job": job_view(await queue.retry(job_id, author_of(request)))})


@router.post(
    "/api/workflow-events/retry-jobs/{job_id}/discard",
    summary="Discard a retry job",
    responses={
        **answers_like(schema_of(RetryJobChanged)),
        **answers_with(WorkflowNotFound, WorkflowConflict),
    },
)
@needs(Scope.OPERATE, audit="retry_job.discard")
async def discard_job(request: Request, job_id: str) -> Response:
    queue = levels_of(request).events.retry_queue
    return json_response({"status": "ok", "job": job_view(await queue.discard(job_id, author_of(request)))})


@router.get(
    "/api/workflow-events/notification-settings",
    summary="Get the notification settings",
    responses=answers_like(schema_of(NotificationSettingsState)),
)
@needs(Scope.READ)
async def get_notification_settings(request: Request) -> Response:
    settings = levels_of(request).events.notification_settings
    return json_response(await settings.shown(caller_of(request).tenant_id))


@router.post(
    "/api/workflow-events/notification-settings",
    summary="Set the Google Chat webhook",
    responses={
        **answers_like(schema_of(NotificationSettingsState)),
        **answers_with(RequestTooLarge),
    },
    openapi_extra=json_body_docs(NotificationSettingsRequest),
)
@needs(Scope.DEPLOY, audit="notification_settings.put")
async def save_notification_settings(request: Request) -> Response:
    wanted = await parse_json(await read_body(request, SETTINGS_BODY_BYTES), NotificationSettingsRequest)
    settings = levels_of(request).events.notification_settings
    return json_response(await settings.save(wanted.webhook_url.strip(), author_of(request)))


@router.post(
    "/api/workflow-events/notification-settings/test",
    summary="Send a test message",
    responses={
        **answers_like(schema_of(NotificationTested)),
        **answers_with(WebhookNotConfigured),
    },
)
@needs(Scope.DEPLOY, audit="notification_settings.test")
async def send_test_notification(request: Request) -> Response:
    caller, origin = caller_of(request), origin_of(request)
    actor = AuditActor(
        tenant_id=caller.tenant_id,
        api_key_id=caller.api_key_id,
        ip=origin.ip,
        user_agent=origin.user_agent,
    )
    sent = await levels_of(request).events.notification_settings.test(actor, author_of(request))
    return json_response(
        {
            "status": "ok" if sent.is_sent else "error",
            "sent": sent.is_sent,
            "http_status": sent.http_status,
            "message": sent.message,
        }
    )


def _credentials(request: Request) -> Credentials:
    query = request.query_params
    return Credentials(
        token=_token(request),
        signature_source=query.get("signature_source", ""),
        source=query.get("source", ""),
        tenant=query.get("tenant", ""),
        caller=caller_or_refusal(request),
    )


def _token(request: Request) -> str:
    """The first non-empty one counts."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return (
        request.query_params.get("token")
        or request.headers.get("x-workflow-event-token")
        or (bearer.strip() if scheme.lower() == "bearer" else "")
    )


async def _whole_body(request: Request) -> bytes:
    try:
        return await read_body(request, EVENT_BODY_BYTES)
    except ClientDisconnect:
        raise InvalidRequest("body: the sender disconnected before the end") from None


def origin_of(request: Request) -> Origin:
    return Origin(request.client.host if request.client else None, request.headers.get("user-agent"))


def answered(gateway: Gateway, request: Request, answer: Answer) -> Response:
    for one in (answer,) if answer.batch is None else answer.batch:
        gateway.metrics.events.labels(one.kind).inc()
        if one.started is not None and not one.started.is_duplicate:
            gateway.metrics.submitted.inc()
    return answer_view(request, answer)


def _clamped(limit: int, most: int) -> int:
    return max(1, min(limit, most))
