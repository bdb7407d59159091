"""Alerts, the channels they are sent over, and deliveries."""

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from pyoco_server.domain.alerts.channels import (
    ChannelDefinition,
    ChannelDeleted,
    ChannelPage,
    ChannelType,
    ChannelView,
    Security,
)
from pyoco_server.domain.alerts.deliveries import DeliveryDetail, DeliveryPage, DeliveryStatus
from pyoco_server.domain.alerts.model import (
    AlertDefinition,
    AlertDeleted,
    AlertKind,
    AlertPage,
    AlertView,
)
from pyoco_server.domain.auth import Scope
from pyoco_server.domain.runs.listing import DEFAULT_LIMIT
from pyoco_server.errors import (
    AlertNotFound,
    ChannelInUse,
    ChannelNotFound,
    DeliveryNotFound,
    RequestTooLarge,
    TargetRefused,
    Unresolvable,
)
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import Body, StrictRoute, json_body_docs, parse_json, read_body
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.lists import PageSize, lists_of
from pyoco_server.http_api.middleware import author_of, caller_of
from pyoco_server.http_api.views import json_response
from pyoco_server.usecases.alerts.manage import DeliveryFilter

MAX_BODY_BYTES = 32 * 1024

router = APIRouter(tags=["alerts"], route_class=StrictRoute, responses=EVERYWHERE)
lists = lists_of("alerts")

Cursor = Annotated[str | None, Query(description="`next_cursor` of the previous page")]
DeliveryId = Annotated[str, Path(description="Id of the delivery")]


class AlertRequest(Body):
    on: list[AlertKind] = Field(description="What it is about")
    filter: str | None = Field(None, description="CEL over flow_name, params, status, tag, tags, type")
    late_after_sec: float | None = Field(
        None,
        strict=True,
        allow_inf_nan=False,
        description="Of `run.late`, `wait.overdue` and `limit.waiting`, which need it",
    )
    cooldown_sec: float = Field(
        0.0,
        strict=True,
        allow_inf_nan=False,
        description="Minimum time between two messages about a flow; the next one counts those left out",
    )
    channel: str = Field(description="Name of a channel")

    def definition(self) -> AlertDefinition:
        return AlertDefinition(
            on=tuple(dict.fromkeys(self.on)), **self.model_dump(exclude={"on"}, exclude_none=True)
        )


class ChannelRequest(Body):
    """`webhook`, `slack`, `teams`, `google_chat`: `url`. `email`: `host` to `to`."""

    type: ChannelType
    url: str | None = None
    secret: str | None = Field(
        None, description="Of a `webhook`, as Standard Webhooks has it: `whsec_…`. Generated if missing"
    )
    host: str | None = None
    port: int | None = Field(None, strict=True)
    security: Security | None = None
    username: str | None = None
    password: str | None = None
    from_: str | None = Field(None, alias="from")
    to: list[str] | None = None

    def definition(self) -> ChannelDefinition:
        given = self.model_dump(exclude={"from_", "to"})
        return ChannelDefinition(**given, sender=self.from_, to=None if self.to is None else tuple(self.to))


@router.put(
    "/alerts/{name}",
    summary="Create or change an alert",
    responses={
        **answers_like(schema_of(AlertView)),
        **answers_like(schema_of(AlertView), 201, "New"),
        **answers_with(RequestTooLarge),
    },
    openapi_extra=json_body_docs(AlertRequest),
)
@needs(Scope.DEPLOY, audit="alert.put")
async def put_alert(request: Request, name: str) -> Response:
    """About what happens from now on, and about what is late, stuck or waiting now."""
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), AlertRequest)
    manage = levels_of(request).alerts.manage
    view, is_new = await manage.put(name, wanted.definition(), author_of(request))
    response = json_response(view)
    response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return response


@lists.get("/alerts", summary="List alerts, newest first", responses=answers_like(schema_of(AlertPage)))
@needs(Scope.READ)
async def list_alerts(request: Request, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT) -> Response:
    return json_response(await levels_of(request).alerts.manage.page(cursor, limit, caller_of(request)))


@router.get(
    "/alerts/{name}",
    summary="Get an alert",
    responses={**answers_like(schema_of(AlertView)), **answers_with(AlertNotFound)},
)
@needs(Scope.READ)
async def get_alert(request: Request, name: str) -> Response:
    return json_response(await levels_of(request).alerts.manage.find(name, caller_of(request)))


@router.delete(
    "/alerts/{name}",
    summary="Delete an alert",
    responses={**answers_like(schema_of(AlertDeleted)), **answers_with(AlertNotFound)},
)
@needs(Scope.DEPLOY, audit="alert.delete")
async def delete_alert(request: Request, name: str) -> Response:
    """Messages that are on their way are still delivered."""
    await levels_of(request).alerts.manage.delete(name, author_of(request))
    return json_response(AlertDeleted(name, deleted=True))


@router.put(
    "/channels/{name}",
    summary="Create or change a channel",
    responses={
        **answers_like(schema_of(ChannelView)),
        **answers_like(schema_of(ChannelView), 201, "New"),
        **answers_with(RequestTooLarge, TargetRefused, Unresolvable),
    },
    openapi_extra=json_body_docs(ChannelRequest),
)
@needs(Scope.DEPLOY, audit="channel.put")
async def put_channel(request: Request, name: str) -> Response:
    """A webhook without `secret` gets one, which only this answer shows; it keeps the one it has.

    A private target, or http, is refused unless `PYOCO_ALERTS_ALLOW_PRIVATE` allows it. Texts may name
    `${secrets.NAME}` and `${vars.NAME}`, which are resolved whenever a message is sent.
    """
    wanted = await parse_json(await read_body(request, MAX_BODY_BYTES), ChannelRequest)
    channels = levels_of(request).alerts.channels
    view, is_new = await channels.put(name, wanted.definition(), author_of(request))
    response = json_response(view)
    response.status_code = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    response.headers["Cache-Control"] = "no-store"
    return response


@lists.get("/channels", summary="List channels, newest first", responses=answers_like(schema_of(ChannelPage)))
@needs(Scope.READ)
async def list_channels(request: Request, cursor: Cursor = None, limit: PageSize = DEFAULT_LIMIT) -> Response:
    return json_response(await levels_of(request).alerts.channels.page(cursor, limit, caller_of(request)))


@router.get(
    "/channels/{name}",
    summary="Get a channel",
    responses={**answers_like(schema_of(ChannelView)), **answers_with(ChannelNotFound)},
)
@needs(Scope.READ)
async def get_channel(request: Request, name: str) -> Response:
    """Secrets and paths are `•••`."""
    return json_response(await levels_of(request).alerts.channels.find(name, caller_of(request)))


@router.delete(
    "/channels/{name}",
    summary="Delete a channel",
    responses={**answers_like(schema_of(ChannelDeleted)), **answers_with(ChannelNotFound, ChannelInUse)},
)
@needs(Scope.DEPLOY, audit="channel.delete")
async def delete_channel(request: Request, name: str) -> Response:
    """Not while an alert uses it."""
    await levels_of(request).alerts.channels.delete(name, author_of(request))
    return json_response(ChannelDeleted(name, deleted=True))


@lists.get(
    "/deliveries", summary="List deliveries, newest first", responses=answers_like(schema_of(DeliveryPage))
)
@needs(Scope.READ)
async def list_deliveries(
    request: Request,
    alert: Annotated[str | None, Query(description="Of this alert")] = None,
    channel: Annotated[str | None, Query(description="Over this channel")] = None,
    status: Annotated[DeliveryStatus | None, Query(description="With this status")] = None,
    cursor: Cursor = None,
    limit: PageSize = DEFAULT_LIMIT,
) -> Response:
    wanted = DeliveryFilter(
        tenant_id=caller_of(request).tenant_id, alert=alert, channel=channel, status=status
    )
    return json_response(await levels_of(request).alerts.deliveries.page(wanted, cursor, limit))


@router.get(
    "/deliveries/{delivery_id}",
    summary="Get a delivery",
    responses={**answers_like(schema_of(DeliveryDetail)), **answers_with(DeliveryNotFound)},
)
@needs(Scope.READ)
async def get_delivery(request: Request, delivery_id: DeliveryId) -> Response:
    """With what is sent."""
    return json_response(await levels_of(request).alerts.deliveries.find(delivery_id, caller_of(request)))


@router.post(
    "/deliveries/{delivery_id}/replay",
    summary="Send a delivery again",
    responses={
        **answers_like(schema_of(DeliveryDetail)),
        **answers_with(DeliveryNotFound, ChannelNotFound),
    },
)
@needs(Scope.OPERATE, audit="delivery.replay")
async def replay_delivery(request: Request, delivery_id: DeliveryId) -> Response:
    """With the same ids and the same body, over its channel as it is now."""
    deliveries = levels_of(request).alerts.deliveries
    return json_response(await deliveries.replay(delivery_id, author_of(request)))


router.include_router(lists)
