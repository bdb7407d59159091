"""docs/settings.md: defaults and allowed values from the code, the meaning by hand."""

import types
import typing
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Meta

from pyoco_server.config import NatsBackendConfig, env_name
from pyoco_server.setting_types import MAX_SECONDS
from tools.reference.tables import Row, code, rewritten

_KINDS = {int: "whole number", float: "seconds", str: "text", bool: "`true`, `false`"}


def page(current: str) -> str:
    known = {env_name(setting.name): setting for setting in fields(NatsBackendConfig)}
    hints = get_type_hints(NatsBackendConfig, include_extras=True)

    def row(key: str, had: Row) -> Row:
        setting = known[key]
        secret = ", secret" if "secret" in setting.metadata else ""
        return [code(key), _default(setting.default), allowed(hints[setting.name]) + secret, had[-1]]

    return rewritten(current.replace(_OLD_HEAD, _HEAD), list(known), row)


_OLD_HEAD = "| variable | default | meaning |\n|---|---|---|\n"
_HEAD = "| variable | default | values | meaning |\n|---|---|---|---|\n"


def _default(value: Any) -> str:
    if value == "":
        return "empty"
    return code(
        str(value).lower() if isinstance(value, bool) else f"{value:g}" if _is_round(value) else value
    )


def _is_round(value: Any) -> bool:
    return isinstance(value, float) and len(f"{value:g}") <= len("604800") and "e" not in f"{value:g}"


def allowed(hint: Any) -> str:
    """The values that a type lets through, in words."""
    origin = get_origin(hint)
    if origin is typing.Literal:
        return ", ".join(code(value) for value in get_args(hint))
    if origin is types.UnionType:
        return " or ".join(allowed(part) for part in get_args(hint))
    if origin is not Annotated:
        return _KINDS[hint]
    kind, *metas = get_args(hint)
    return _KINDS[kind] + _limits(next(meta for meta in metas if isinstance(meta, Meta)))


def _limits(meta: Meta) -> str:
    if meta.ge is not None and meta.le is not None and meta.le != MAX_SECONDS:
        return f", {meta.ge:g} to {meta.le:g}"
    if meta.gt is not None:
        return f", more than {meta.gt:g}"
    if meta.ge is not None:
        return f", {meta.ge:g} or more"
    return ""
