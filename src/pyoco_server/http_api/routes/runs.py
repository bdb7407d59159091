"""Runs: submit and read."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from pyoco_server.domain.jobs import Submission
from pyoco_server.errors import RequestTooLarge
from pyoco_server.http_api.bodies import json_body_docs, parse_json, read_body
from pyoco_server.http_api.gateway import gateway_of
from pyoco_server.http_api.views import json_response, run_view

router = APIRouter(tags=["runs"])

MAX_PARAMS_BYTES = 256 * 1024
MAX_BODY_BYTES = MAX_PARAMS_BYTES + 64 * 1024
"""The params and everything around them."""

Include = Annotated[list[str], Query(description="`records`, `full` or `all`: with task_records")]


class RunSubmitRequest(BaseModel):
    flow_name: str = Field(min_length=1, max_length=200)
    params: dict[str, Any] = Field(default_factory=dict)
    tag: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    tags: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]] | None = Field(None, max_length=32)


@router.post("/runs", summary="Submit a run", openapi_extra=json_body_docs(RunSubmitRequest))
async def submit_run(request: Request) -> Response:
    body = await read_body(request, MAX_BODY_BYTES)
    wanted = parse_json(body, RunSubmitRequest)
    _check_params(wanted.params, len(body))
    gateway = gateway_of(request)
    snapshot = await gateway.use_cases.submit_run(
        Submission(
            flow_name=wanted.flow_name,
            params=wanted.params,
            tag=wanted.tag or gateway.config.default_tag,
            tags=None if wanted.tags is None else tuple(wanted.tags),
        )
    )
    return json_response({"run_id": snapshot.run_id, "status": snapshot.status})


def _check_params(params: dict[str, Any], body_size: int) -> None:
    if body_size > MAX_PARAMS_BYTES and len(msgspec.json.encode(params)) > MAX_PARAMS_BYTES:
        raise RequestTooLarge(f"params: more than {MAX_PARAMS_BYTES} bytes of JSON")


@router.get("/runs/{run_id}", summary="The latest state of a run")
async def get_run(request: Request, run_id: str, include: Include = []) -> Response:  # noqa: B006
    view = await gateway_of(request).use_cases.read_run(run_id)
    return json_response(run_view(view, include))
