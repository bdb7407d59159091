"""Why a run waits or failed (`/runs/{run_id}/diagnosis`)."""

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from pyoco_server.domain.auth import Scope
from pyoco_server.domain.diagnosis.causes import Diagnosis
from pyoco_server.domain.diagnosis.texts import explained
from pyoco_server.errors import RunNotFound
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import StrictRoute
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, preferred_language, schema_of
from pyoco_server.http_api.gateway import reading_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.routes.runs import RunId
from pyoco_server.http_api.views import json_response

router = APIRouter(tags=["runs"], route_class=StrictRoute, responses=EVERYWHERE)


@router.get(
    "/runs/{run_id}/diagnosis",
    summary="Explain why a run waits or failed",
    responses={**answers_like(schema_of(Diagnosis)), **answers_with(RunNotFound)},
)
@needs(Scope.READ)
async def get_diagnosis(
    request: Request,
    run_id: RunId,
    *,
    accept_language: Annotated[str, Header(description="`ja` or `en`")] = "en",
) -> Response:
    """`cause` is a fixed word; `summary`, `details` and `advice` are sentences, in Japanese or English.

    `evidence` has what the diagnosis is based on, e.g. the position in the queue, the worker, the last lines
    of the log, and how often the flow failed with the same error in the last 24 hours.
    """
    facts = await reading_of(request).levels.runs.diagnose(run_id, caller_of(request))
    return json_response(explained(facts, preferred_language(accept_language)))
