"""Statistics of ended runs (`/stats`)."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.runs.model import RunStatus
from pyoco_server.domain.stats.records import Bucket
from pyoco_server.domain.stats.series import EndedStatus, Stats, StatsBy, StatsQuery
from pyoco_server.errors import InvalidListQuery
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import query_time, refusing_with
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import json_response

router = APIRouter(
    tags=["stats"],
    route_class=refusing_with(InvalidListQuery),
    responses={**EVERYWHERE, **answers_with(InvalidListQuery)},
)


@router.get("/stats", summary="Count ended runs over time", responses=answers_like(schema_of(Stats)))
@needs(Scope.READ)
async def get_stats(  # noqa: PLR0913 - one per filter
    request: Request,
    *,
    by: Annotated[StatsBy, Query(description="What the keys of the series are")] = StatsBy.STATUS,
    bucket: Annotated[Bucket, Query(description="Length of a bucket")] = Bucket.MINUTE,
    since: Annotated[
        str | None,
        Query(
            description="From the bucket of this time: RFC 3339 or Unix seconds; default: an hour, or a day"
        ),
    ] = None,
    until: Annotated[str | None, Query(description="Buckets that start before; default: now")] = None,
    flow: Annotated[str | None, Query(description="Only runs of this flow")] = None,
    tag: Annotated[str | None, Query(description="Only runs with this tag")] = None,
    status: Annotated[EndedStatus | None, Query(description="Only runs with this status")] = None,
) -> Response:
    """Runs that ended, per minute (kept for a day) or hour (kept for 90 days), with quantiles.

    Deleted runs still count. `wait`: seconds from the time when a run could start to its first start.
    `duration`: seconds from the start of its last try to its end. Quantiles are exact to 4 %.
    """
    query = StatsQuery(
        by=by,
        bucket=bucket,
        tenant_id=caller_of(request).tenant_id,
        flow=flow,
        tag=tag,
        status=None if status is None else RunStatus(status.value),
    )
    times = query_time("since", since), query_time("until", until)
    return json_response(await levels_of(request).operations.stats(query, *times))
