"""Workflow events: receive them, look at them, try them again, tell people."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt
from starlette.requests import ClientDisconnect

from pyoco_server.domain.events.audit import MAX_RECENT, AuditActor
from pyoco_server.errors import (
    EventFailed,
    InvalidEventToken,
    InvalidRequest,
    InvalidYearMonth,
    RequestTooLarge,
    WebhookNotConfigured,
    WorkflowConflict,
    WorkflowNotFound,
)
from pyoco_server.http_api import schemas
from pyoco_server.http_api.bodies import Body, StrictRoute, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with
from pyoco_server.http_api.gateway import Gateway, gateway_of, levels_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import answer_view, job_view, json_response, queue_view
from pyoco_server.usecases.auth import ANONYMOUS, Caller
from pyoco_server.usecases.events.receive import Answer, Arrival
from pyoco_server.usecases.events.retry import DEFAULT_LIMIT, MAX_LIMIT

EVENT_BODY_BYTES = 1024 * 1024
SETTINGS_BODY_BYTES = 16 * 1024
DEFAULT_SHOWN = 20
MAX_SHOWN = 200

router = APIRouter(tags=["workflow events"], route_class=StrictRoute, responses=EVERYWHERE)
receiving = APIRouter(
    tags=["workflow events"],
    responses={
        **EVERYWHERE,
        **answers_like(schemas.any_of(schemas.EventStarted, schemas.EventResumed, schemas.EventPinged)),
        **answers_with(
            InvalidYearMonth,
            InvalidEventToken,
            WorkflowNotFound,
            WorkflowConflict,
            RequestTooLarge,
            EventFailed,
        ),
    },
)


class WorkflowEvent(BaseModel):
    """Every field may be left out; a CloudEvent may be sent instead."""

    model_config = ConfigDict(extra="allow")

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
    execution_id: str | None = Field(None, description="with node_id: resume that node")
    node_id: str | None = None
    wait_key: str | int | None = Field(None, description="resume the node that waits with this key")


class DrainRequest(Body):
    limit: StrictInt = DEFAULT_LIMIT
    force: StrictBool = False


class NotificationSettingsRequest(Body):
    webhook_url: str = Field(description="empty: take the saved one away")


@receiving.post(
    "/api/workflow-events",
    summary="An event from outside",
    openapi_extra=json_body_docs(WorkflowEvent, required=False),
)
async def receive_event(request: Request) -> Response:
    """Starts the template, or resumes the node, that the event means: once for each idempotency key."""
    return answered(gateway_of(request), request, await levels_of(request).events.receive(_arrival(request)))


@receiving.post(
    "/api/workflow-events/{event_id}/replay",
    summary="Send an event again",
    responses=answers_with(WorkflowNotFound),
)
async def replay_event(request: Request, event_id: str) -> Response:
    """One that started something is started again; one that did not has its key tried again."""
    answer = await levels_of(request).events.receive.replay(event_id, caller_of(request), *whence(request))
    return answered(gateway_of(request), request, answer)


@router.get(
    "/api/workflow-events/summary",
    summary="What the events of a month came to",
    responses=answers_like(schemas.of(schemas.EventSummary)),
)
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
    summary="Events that are tried again",
    responses=answers_like(schemas.of(schemas.RetryJobs)),
)
async def list_retry_jobs(
    request: Request, *, limit: Annotated[int, Query(description="1 to 200")] = DEFAULT_SHOWN
) -> Response:
    queue = levels_of(request).events.retry_queue
    shown = await queue.shown(caller_of(request).tenant_id, _clamped(limit, MAX_SHOWN))
    return json_response({"status": "ok", **queue_view(shown)})


@router.post(
    "/api/workflow-events/retry-jobs/drain",
    summary="Try the queued events again",
    responses={
        **answers_like(schemas.of(schemas.RetryJobsDrained)),
        **answers_with(WorkflowConflict, RequestTooLarge),
    },
    openapi_extra=json_body_docs(DrainRequest, required=False),
)
async def drain_retry_jobs(request: Request) -> Response:
    """Those that are due; with `force`, the others too."""
    body = await read_body(request, SETTINGS_BODY_BYTES)
    wanted = await parse_json(body, DrainRequest) if body.strip() else DrainRequest()
    drain = levels_of(request).events.drain_retry_jobs
    done = await drain(caller_of(request).tenant_id, _clamped(wanted.limit, MAX_LIMIT), force=wanted.force)
    return json_response({**done, "queue": queue_view(done["queue"])})


@router.post(
    "/api/workflow-events/retry-jobs/{job_id}/retry",
    summary="Try a job again from the beginning",
    responses={
        **answers_like(schemas.of(schemas.RetryJobChanged)),
        **answers_with(WorkflowNotFound, WorkflowConflict),
    },
)
async def retry_job(request: Request, job_id: str) -> Response:
    queue = levels_of(request).events.retry_queue
    return json_response(
        {"status": "ok", "job": job_view(await queue.retry(caller_of(request).tenant_id, job_id))}
    )


@router.post(
    "/api/workflow-events/retry-jobs/{job_id}/discard",
    summary="Give a job up",
    responses={
        **answers_like(schemas.of(schemas.RetryJobChanged)),
        **answers_with(WorkflowNotFound, WorkflowConflict),
    },
)
async def discard_job(request: Request, job_id: str) -> Response:
    queue = levels_of(request).events.retry_queue
    return json_response(
        {"status": "ok", "job": job_view(await queue.discard(caller_of(request).tenant_id, job_id))}
    )


@router.get(
    "/api/workflow-events/notification-settings",
    summary="Where escalations are told",
    responses=answers_like(schemas.of(schemas.NotificationSettingsState)),
)
async def get_notification_settings(request: Request) -> Response:
    settings = levels_of(request).events.notification_settings
    return json_response(await settings.shown(caller_of(request).tenant_id))


@router.post(
    "/api/workflow-events/notification-settings",
    summary="Tell escalations to a space of Google Chat",
    responses={
        **answers_like(schemas.of(schemas.NotificationSettingsState)),
        **answers_with(RequestTooLarge),
    },
    openapi_extra=json_body_docs(NotificationSettingsRequest),
)
async def save_notification_settings(request: Request) -> Response:
    wanted = await parse_json(await read_body(request, SETTINGS_BODY_BYTES), NotificationSettingsRequest)
    settings = levels_of(request).events.notification_settings
    return json_response(await settings.save(caller_of(request).tenant_id, wanted.webhook_url.strip()))


@router.post(
    "/api/workflow-events/notification-settings/test",
    summary="Send a test message",
    responses={
        **answers_like(schemas.of(schemas.NotificationTested)),
        **answers_with(WebhookNotConfigured),
    },
)
async def send_test_notification(request: Request) -> Response:
    caller = caller_of(request)
    ip, user_agent = whence(request)
    actor = AuditActor(tenant_id=caller.tenant_id, api_key_id=caller.api_key_id, ip=ip, user_agent=user_agent)
    sent = await levels_of(request).events.notification_settings.test(actor)
    return json_response(
        {
            "status": "ok" if sent.is_sent else "error",
            "sent": sent.is_sent,
            "http_status": sent.http_status,
            "message": sent.message,
        }
    )


def _arrival(request: Request) -> Arrival:
    ip, user_agent = whence(request)
    return Arrival(
        token=_token(request),
        signature_source=request.query_params.get("signature_source", ""),
        source=request.query_params.get("source", ""),
        tenant=request.query_params.get("tenant", ""),
        headers=request.headers,
        read_body=partial(_whole_body, request),
        ask_caller=getattr(request.state, "ask_caller", _anybody),
        ip=ip,
        user_agent=user_agent,
    )


def _token(request: Request) -> str:
    """The first non-empty of the three places decides."""
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
        raise InvalidRequest("body: the sender left before it had arrived") from None


async def _anybody() -> Caller:
    return ANONYMOUS


def whence(request: Request) -> tuple[str | None, str | None]:
    return (request.client.host if request.client else None, request.headers.get("user-agent"))


def answered(gateway: Gateway, request: Request, answer: Answer) -> Response:
    if answer.started is not None and not answer.started.is_duplicate:
        gateway.metrics.submitted.inc()
    return answer_view(request, answer)


def _clamped(limit: int, most: int) -> int:
    return max(1, min(limit, most))
