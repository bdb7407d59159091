"""Content beside runs: large values, which stand in runs as references, and artifacts."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response

from pyoco_server.answers import RunArtifacts
from pyoco_server.domain.artifacts import BINARY
from pyoco_server.domain.auth import Scope
from pyoco_server.errors import ArtifactNotFound, RunNotFound, ValueNotFound
from pyoco_server.http_api.access import needs
from pyoco_server.http_api.bodies import StrictRoute
from pyoco_server.http_api.contents import RangeHeader, content_docs, content_of
from pyoco_server.http_api.errors import EVERYWHERE, answers_like, answers_with, schema_of
from pyoco_server.http_api.gateway import levels_of
from pyoco_server.http_api.middleware import caller_of
from pyoco_server.http_api.views import json_response

router = APIRouter(tags=["runs"], route_class=StrictRoute, responses=EVERYWHERE)

SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
"""A task may have written what somebody else has sent: no script, no request, an origin of its own."""
RunId = Annotated[str, Path(description="Run id returned by POST /runs")]


@router.get(
    "/values/{sha256}",
    summary="Read a large value",
    responses={**content_docs("value", "application/json"), **answers_with(ValueNotFound)},
)
@needs(Scope.READ)
async def read_value(
    request: Request,
    sha256: Annotated[str, Path(description="Hash of the value, as `$ref` has it")],
    range_: RangeHeader = None,
) -> Response:
    """The JSON that a `$ref` in params or a result stands for."""
    values = levels_of(request).runs.read_value
    value = await values.find(sha256, caller_of(request))
    return content_of(value, values.read, range_, value.type, {})


@router.get(
    "/runs/{run_id}/artifacts",
    summary="List the artifacts of a run",
    responses={**answers_like(schema_of(RunArtifacts)), **answers_with(RunNotFound)},
)
@needs(Scope.READ)
async def list_artifacts(request: Request, run_id: RunId) -> Response:
    """Files that its tasks have saved, in the order in which they were saved."""
    items = await levels_of(request).runs.read_artifact.list(run_id, caller_of(request))
    return json_response(RunArtifacts(run_id, items))


@router.get(
    "/runs/{run_id}/artifacts/{name}",
    summary="Read an artifact of a run",
    responses={**content_docs("artifact", BINARY), **answers_with(RunNotFound, ArtifactNotFound)},
)
@needs(Scope.READ)
async def read_artifact(
    request: Request,
    run_id: RunId,
    name: Annotated[str, Path(description="Name of the artifact")],
    *,
    inline: Annotated[bool, Query(description="To be shown, in a sandbox, instead of saved")] = False,
    range_: RangeHeader = None,
) -> Response:
    """Its content, as an attachment; `inline` leaves this to the browser."""
    runs = levels_of(request).runs
    artifact, value = await runs.read_artifact.find(run_id, name, caller_of(request))
    shown = "inline" if inline else "attachment"
    headers = {
        "Content-Disposition": f"{shown}; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Security-Policy": SANDBOX,
    }
    return content_of(value, runs.read_value.read, range_, artifact.type, headers)
