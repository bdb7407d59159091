"""Multipart forms, read within limits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, BinaryIO

from fastapi import Request
from msgspec import Struct
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from pyoco_server.errors import InvalidRequest, RequestTooLarge, WorkflowTooLarge
from pyoco_server.http_api.bodies import RunFields, run_fields_of_form, unknown, within

MAX_FIELDS = 10
FORM_OVERHEAD_BYTES = 16 * 1024
"""Boundaries, part headers and the other fields of a form."""

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
                        "flow_name": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 200,
                            "description": "Name of the flow in lists",
                        },
                        "tag": {
                            "type": "string",
                            "pattern": "^[A-Za-z0-9_-]{1,64}$",
                            "description": "Tag of the workers that may run it",
                        },
                        **{
                            name: {"type": "string", "description": f"{field.description}; as JSON"}
                            for name, field in RunFields.model_fields.items()
                        },
                    },
                }
            }
        },
    }
}


WHEEL_DOCS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["wheel"],
                    "properties": {
                        "wheel": {"type": "string", "format": "binary", "description": "*.whl file"},
                        "tags": {
                            "type": "string",
                            "description": "Worker tags, comma-separated; default: all workers",
                        },
                        "replace": {
                            "type": "boolean",
                            "default": True,
                            "description": "For older clients; has no effect",
                        },
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
    run_fields: RunFields


async def read_flow_form(request: Request, max_file_bytes: int) -> FlowForm:
    """The form of POST /runs/yaml. Raises WorkflowTooLarge, or InvalidRequest with the field."""
    try:
        form = await _read_form(request, max_file_bytes + FORM_OVERHEAD_BYTES, FLOW_YAML_DOCS)
    except RequestTooLarge as error:
        raise WorkflowTooLarge(f"workflow file too large: at most {max_file_bytes:,} bytes") from error
    try:
        texts = {name: text for name in RunFields.model_fields if (text := _text(form, name)) is not None}
        fields = run_fields_of_form(texts)
        return FlowForm(await _file(form), _text(form, "flow_name") or "", _text(form, "tag"), fields)
    finally:
        await form.close()


async def _read_form(request: Request, limit: int, docs: dict[str, Any]) -> FormData:
    fields = docs["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    form = await _parsed(request, limit, next(iter(fields)))
    for name in form:
        if name not in fields:
            await form.close()
            raise InvalidRequest(f"{name}: {unknown('field', name, fields)}")
    return form


async def _parsed(request: Request, limit: int, file_field: str) -> FormData:
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        raise InvalidRequest(f"the body must be multipart/form-data with a file in the field {file_field}")
    parser = MultiPartParser(
        request.headers, within(request, limit), max_files=1, max_fields=MAX_FIELDS, max_part_size=limit
    )
    try:
        return await parser.parse()
    except (MultiPartException, KeyError) as error:
        raise InvalidRequest(f"multipart/form-data: {getattr(error, 'message', error)}") from error


class WheelForm(Struct, frozen=True):
    name: str
    file: BinaryIO
    size: int
    tags: str
    replace: bool


@asynccontextmanager
async def open_wheel_form(request: Request, max_file_bytes: int) -> AsyncIterator[WheelForm]:
    """The form of POST /wheels. The file is on disk, not in memory."""
    form = await _read_form(request, max_file_bytes + FORM_OVERHEAD_BYTES, WHEEL_DOCS)
    try:
        upload = _upload(form, "wheel", "curl -F wheel=@my_flows-1.0-py3-none-any.whl -F tags=cpu")
        if (upload.size or 0) > max_file_bytes:
            raise RequestTooLarge(
                f"the wheel has {upload.size:,} bytes; PYOCO_WHEEL_MAX_BYTES allows {max_file_bytes:,}"
            )
        yield WheelForm(
            upload.filename or "", upload.file, upload.size or 0, _text(form, "tags") or "", _flag(form)
        )
    finally:
        await form.close()


def _flag(form: FormData) -> bool:
    text = (_text(form, "replace") or "true").strip().lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidRequest(f"replace: {text!r} is not true or false")
    return text in ("true", "1")


def _upload(form: FormData, name: str, example: str) -> UploadFile:
    found = form.get(name)
    if not isinstance(found, UploadFile):
        raise InvalidRequest(f"{name}: a file is required, e.g. {example}")
    return found


async def _file(form: FormData) -> bytes:
    return await _upload(form, "workflow", "curl -F workflow=@flow.yaml -F flow_name=x").read()


def _text(form: FormData, name: str) -> str | None:
    found = form.get(name)
    if isinstance(found, UploadFile):
        raise InvalidRequest(f"{name}: must be a text field, not a file")
    return found
