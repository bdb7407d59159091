"""Definitions of events: templates and actions that they may start, sources that may sign them."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Header, Request, Response
from pydantic import Field

from pyoco_server.answers import DeletedId, DeletedKey
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.events.requests import EventRequest, from_fields
from pyoco_server.domain.events.sources import Source
from pyoco_server.domain.events.templates import RUN_FIELDS, Action, Step, Template, TriggerKind
from pyoco_server.domain.events.views import (
    EventStarted,
    WorkflowAction,
    WorkflowActions,
    WorkflowSource,
    WorkflowSources,
    WorkflowTemplate,
    WorkflowTemplates,
)
from pyoco_server.errors import (
    EventFailed,
    InvalidYearMonth,
    RequestTooLarge,
    WorkflowConflict,
    WorkflowNotFound,
)
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import (
    Body,
    RunFields,
    StrictRoute,
    json_body_docs,
    parse_json,
    read_body,
)
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import gateway_of, levels_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.routes.events import EVENT_BODY_BYTES, answered, origin_of
from pyoco_server.http_api.views import json_response, source_view

MAX_BODY_BYTES = 300 * 1024

router = APIRouter(tags=["workflow templates"], route_class=StrictRoute, responses=EVERYWHERE)

IfMatch = Annotated[str | None, Header(description="updated_at of the template as read")]


class StepRequest(Body):
    id: str
    action: str
    trigger_kind: TriggerKind
    title: str | None = None


class TemplateRequest(Body):
    name: str
    steps: list[StepRequest] = Field(min_length=1, max_length=30)
    year: int = 0
    month: int = 0
    mfcloud_url: str | None = None
    notes: str | None = None
    needs_month: bool | None = Field(
        None,
        description="false: events need no year and month. Default: true if these are given, also as 0",
    )
    when: str | None = Field(
        None,
        min_length=1,
        description="Filter in CEL; reads `event`, `event_name` and `source`. Other events start nothing",
    )

    def is_month_needed(self) -> bool | None:
        """A template with year and month asks for them, also if they are 0."""
        if self.needs_month is None and self.model_fields_set & {"year", "month"}:
            return True
        return self.needs_month


class ActionRequest(RunFields):
    """A flow, with the fields of its runs, or a registered graph."""

    flow_name: str | None = None
    tag: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    graph_id: str | None = None
    concurrency: Literal["allow", "one"] = "allow"


class SourceRequest(Body):
    kind: Literal["standard", "github", "stripe", "hmac"]
    secrets: list[str] = Field(min_length=1, max_length=2)
    template_id: str | None = None
    signature_header: str = Field("x-signature", pattern=r"^[A-Za-z0-9-]{1,64}$")
    timestamp_header: str | None = Field(None, pattern=r"^[A-Za-z0-9-]{1,64}$")
    key_of: Literal["body", "delivery"] = Field(
        "body",
        description="Kind github: identity of an event; the delivery id is not signed",
    )


class StartRequest(Body):
    idempotency_key: str | None = None
    year: int | None = None
    month: int | None = None
    mfcloud_url: str | None = None
    notes: str | None = None
    data: dict[str, Any] | None = None


# Templates


@router.get(
    "/api/workflow-templates",
    summary="List templates",
    responses=answers_like(schema_of(WorkflowTemplates)),
)
@needs(Scope.READ)
async def list_templates(request: Request) -> Response:
    templates = levels_of(request).events.templates
    return _items(await templates.list_templates(caller_of(request).tenant_id))


@router.get(
    "/api/workflow-templates/{template_id}",
    summary="Get a template",
    responses={**answers_like(schema_of(WorkflowTemplate)), **answers_with(WorkflowNotFound)},
)
@needs(Scope.READ)
async def get_template(request: Request, template_id: str) -> Response:
    templates = levels_of(request).events.templates
    return _one(await templates.find(caller_of(request).tenant_id, template_id))


@router.put(
    "/api/workflow-templates/{template_id}",
    summary="Create or change a template",
    responses={
        **answers_like(schema_of(WorkflowTemplate)),
        **answers_with(WorkflowConflict, RequestTooLarge),
    },
    openapi_extra=json_body_docs(TemplateRequest),
)
@needs(Scope.DEPLOY, audit="template.put")
async def put_template(request: Request, template_id: str, if_match: IfMatch = None) -> Response:
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), TemplateRequest)
    template = Template(
        id=template_id,
        updated_at="",
        tenant_id=caller_of(request).tenant_id,
        steps=tuple(Step(**step.model_dump()) for step in wanted.steps),
        needs_month=wanted.is_month_needed(),
        **wanted.model_dump(exclude={"steps", "needs_month"}),
    )
    return _one(await levels_of(request).events.templates.put(template, _etag(if_match), author_of(request)))


@router.delete(
    "/api/workflow-templates/{template_id}",
    summary="Delete a template",
    responses={
        **answers_like(schema_of(DeletedId)),
        **answers_with(WorkflowNotFound, WorkflowConflict),
    },
)
@needs(Scope.DEPLOY, audit="template.delete")
async def delete_template(request: Request, template_id: str, if_match: IfMatch = None) -> Response:
    templates = levels_of(request).events.templates
    await templates.delete(template_id, _etag(if_match), author_of(request))
    return json_response({"id": template_id, "deleted": True})


@router.post(
    "/api/workflow-templates/{template_id}/start",
    summary="Start a template",
    responses={
        **answers_like(schema_of(EventStarted)),
        **answers_with(InvalidYearMonth, WorkflowNotFound, WorkflowConflict, RequestTooLarge, EventFailed),
    },
    openapi_extra=json_body_docs(StartRequest, required=False),
)
@needs(Scope.SUBMIT)
async def start_template(request: Request, template_id: str) -> Response:
    """Works with any trigger_kind."""
    body = await read_body(request, EVENT_BODY_BYTES)
    wanted = await parse_json(body, StartRequest) if body.strip() else StartRequest()
    answer = await levels_of(request).events.receive.start_by_hand(
        template_id, _by_hand(request, wanted), caller_of(request), origin_of(request)
    )
    return answered(gateway_of(request), request, answer)


def _by_hand(request: Request, wanted: StartRequest) -> EventRequest:
    return from_fields({**wanted.model_dump(), "source": "manual"}, request.headers)


# Actions


@router.get(
    "/api/workflow-actions",
    summary="List actions",
    responses=answers_like(schema_of(WorkflowActions)),
)
@needs(Scope.READ)
async def list_actions(request: Request) -> Response:
    actions = levels_of(request).events.actions
    return _items(await actions.list_actions(caller_of(request).tenant_id))


@router.get(
    "/api/workflow-actions/{key}",
    summary="Get an action",
    responses={**answers_like(schema_of(WorkflowAction)), **answers_with(WorkflowNotFound)},
)
@needs(Scope.READ)
async def get_action(request: Request, key: str) -> Response:
    actions = levels_of(request).events.actions
    return _one(await actions.find(caller_of(request).tenant_id, key))


@router.put(
    "/api/workflow-actions/{key}",
    summary="Create or change an action",
    responses={**answers_like(schema_of(WorkflowAction)), **answers_with(RequestTooLarge)},
    openapi_extra=json_body_docs(ActionRequest),
)
@needs(Scope.DEPLOY, audit="action.put")
async def put_action(request: Request, key: str) -> Response:
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), ActionRequest)
    action = Action(
        key=key,
        updated_at="",
        tenant_id=caller_of(request).tenant_id,
        **wanted.model_dump(exclude=set(RUN_FIELDS)),
        **wanted.timing(),
    )
    return _one(await levels_of(request).events.actions.put(action, author_of(request)))


@router.delete(
    "/api/workflow-actions/{key}",
    summary="Delete an action",
    responses={**answers_like(schema_of(DeletedKey)), **answers_with(WorkflowNotFound)},
)
@needs(Scope.DEPLOY, audit="action.delete")
async def delete_action(request: Request, key: str) -> Response:
    await levels_of(request).events.actions.delete(key, author_of(request))
    return json_response({"key": key, "deleted": True})


# Sources


@router.get(
    "/api/workflow-sources",
    summary="List sources of signed events",
    responses=answers_like(schema_of(WorkflowSources)),
)
@needs(Scope.READ)
async def list_sources(request: Request) -> Response:
    sources = levels_of(request).events.sources
    found = await sources.list_sources(caller_of(request).tenant_id)
    return json_response({"status": "ok", "items": [source_view(source) for source in found]})


@router.get(
    "/api/workflow-sources/{source_id}",
    summary="Get a source",
    responses={**answers_like(schema_of(WorkflowSource)), **answers_with(WorkflowNotFound)},
)
@needs(Scope.READ)
async def get_source(request: Request, source_id: str) -> Response:
    sources = levels_of(request).events.sources
    return json_response(source_view(await sources.find(caller_of(request).tenant_id, source_id)))


@router.put(
    "/api/workflow-sources/{source_id}",
    summary="Create or change a source",
    responses={
        **answers_like(schema_of(WorkflowSource)),
        **answers_with(WorkflowConflict, RequestTooLarge),
    },
    openapi_extra=json_body_docs(SourceRequest),
)
@needs(Scope.DEPLOY, audit="source.put")
async def put_source(request: Request, source_id: str) -> Response:
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), SourceRequest)
    source = Source(
        id=source_id,
        updated_at="",
        tenant_id=caller_of(request).tenant_id,
        secrets=tuple(wanted.secrets),
        **wanted.model_dump(exclude={"secrets"}),
    )
    written = await levels_of(request).events.sources.put(source, author_of(request))
    return json_response(source_view(written))


@router.delete(
    "/api/workflow-sources/{source_id}",
    summary="Delete a source",
    responses={**answers_like(schema_of(DeletedId)), **answers_with(WorkflowNotFound)},
)
@needs(Scope.DEPLOY, audit="source.delete")
async def delete_source(request: Request, source_id: str) -> Response:
    await levels_of(request).events.sources.delete(source_id, author_of(request))
    return json_response({"id": source_id, "deleted": True})


def _one(value: Template | Action) -> Response:
    return json_response(_shown(value))


def _items(values: list[Template] | list[Action]) -> Response:
    return json_response({"status": "ok", "items": [_shown(value) for value in values]})


def _shown(value: Template | Action) -> dict[str, Any]:
    fields = msgspec.structs.asdict(value)
    del fields["tenant_id"]
    if isinstance(value, Template):
        fields["needs_month"] = value.is_month_needed
    return fields


def _etag(if_match: str | None) -> str | None:
    """With or without the quotes of an entity tag."""
    return if_match and if_match.strip().strip('"')
