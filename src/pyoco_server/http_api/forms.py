"""Multipart forms, read within limits."""

from typing import Any

from fastapi import Request
from msgspec import Struct
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from pyoco_server.errors import InvalidRequest, RequestTooLarge, WorkflowTooLarge

MAX_FIELDS = 10
FORM_OVERHEAD_BYTES = 16 * 1024
"""Boundaries, headers of parts and the small fields around a file."""

FLOW_YAML_DOCS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["workflow", "flow_name"],
                    "properties": {
                        "workflow": {"type": "string", "format": "binary", "description": "flow.yaml"},
                        "flow_name": {"type": "string", "minLength": 1, "maxLength": 200},
                        "tag": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                    },
                }
            }
        },
    }
}


class FlowForm(Struct, frozen=True):
    workflow: bytes
    flow_name: str
    tag: str | None


async def read_flow_form(request: Request, max_file_bytes: int) -> FlowForm:
    """The form of POST /runs/yaml. Raises WorkflowTooLarge or InvalidRequest, which names the field."""
    try:
        form = await _read_form(request, max_file_bytes + FORM_OVERHEAD_BYTES)
    except RequestTooLarge as error:
        raise WorkflowTooLarge(f"workflow file too large: at most {max_file_bytes:,} bytes") from error
    try:
        return FlowForm(await _file(form), _text(form, "flow_name") or "", _text(form, "tag"))
    finally:
        await form.close()


async def _read_form(request: Request, limit: int) -> FormData:
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise InvalidRequest("the body must be multipart/form-data with the fields workflow and flow_name")
    parser = MultiPartParser(
        request.headers, _within(request, limit), max_files=1, max_fields=MAX_FIELDS, max_part_size=limit
    )
    try:
        return await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidRequest(f"multipart/form-data: {getattr(error, 'message', error)}") from error


async def _within(request: Request, limit: int) -> Any:
    """The body's chunks, as long as they are not too many."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise RequestTooLarge(f"the body has more than {limit:,} bytes")
        yield chunk


async def _file(form: FormData) -> bytes:
    found = form.get("workflow")
    if not isinstance(found, UploadFile):
        raise InvalidRequest("workflow: a file is required, e.g. curl -F workflow=@flow.yaml -F flow_name=x")
    return await found.read()


def _text(form: FormData, name: str) -> str | None:
    found = form.get(name)
    if isinstance(found, UploadFile):
        raise InvalidRequest(f"{name}: must be a text field, not a file")
    return found
