"""docs/reference/http.md: every route, from the OpenAPI document of the application."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyoco_server.config import NatsBackendConfig
from pyoco_server.http_api import create_app
from pyoco_server.http_api.access import AUDIT_DOCS, SECURITY_SCHEME
from tools.reference.tables import code, table

Json = dict[str, Any]

_HEAD = """# HTTP

All routes of a gateway. Every gateway serves the same list at `/docs`, and as OpenAPI at `/openapi.json`.
Errors have the [error body](errors.md). With API keys enabled, a request needs one in the header `X-API-Key`,
with the [scope](../how-to/api-keys.md#scopes) of the route. Changes are recorded in the
[audit trail](../how-to/audit.md).

"""
_EVERYWHERE = frozenset({"401", "403"})
"""Answers of every route that wants a key: told once."""


class Route(NamedTuple):
    method: str
    path: str
    operation: Json

    @property
    def tag(self) -> str:
        return str(self.operation["tags"][0])

    @property
    def wants_key(self) -> bool:
        return "security" in self.operation


def page(_current: str) -> str:
    document = create_app(NatsBackendConfig()).openapi()
    routes = list(routes_of(document))
    overview = table(("route", "what"), map(_overview, routes))
    tags = dict.fromkeys(route.tag for route in routes)
    sections = (f"\n## {tag.capitalize()}\n" + _routes(routes, tag, document) for tag in tags)
    return _HEAD + overview + "".join(sections)


def routes_of(document: Json) -> Iterator[Route]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield Route(method.upper(), path, operation)


def _overview(route: Route) -> tuple[str, str]:
    return code(f"{route.method} {route.path}"), route.operation["summary"]


def _routes(routes: list[Route], tag: str, document: Json) -> str:
    return "".join(_section(route, document) for route in routes if route.tag == tag)


def _section(route: Route, document: Json) -> str:
    operation = route.operation
    words = " ".join(filter(None, [f"{operation['summary']}.", operation.get("description")]))
    parts = [f"\n### {route.method} {route.path}\n", words + "\n"]
    inputs = [*_parameters(operation, document), *_body_fields(operation, document)]
    if inputs:
        parts.append(table(("input", "in", "values", "meaning"), inputs))
    parts.append(_answers(route))
    return "\n".join(parts)


def _parameters(operation: Json, document: Json) -> Iterator[tuple[str, ...]]:
    for parameter in operation.get("parameters", []):
        name = code(parameter["name"]) + (" (required)" if parameter.get("required") else "")
        yield name, parameter["in"], values(parameter["schema"], document), parameter.get("description", "")


def _body_fields(operation: Json, document: Json) -> Iterator[tuple[str, ...]]:
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(content["schema"], document)
        for name, field in schema.get("properties", {}).items():
            label = code(name) + (" (required)" if name in schema.get("required", []) else "")
            yield (
                label,
                "form" if "form" in kind else "body",
                values(field, document),
                field.get("description", ""),
            )


def _resolved(schema: Json, document: Json) -> Json:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Json = document["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def values(schema: Json, document: Json) -> str:
    """What a schema lets through, in words."""
    schema = _resolved(schema, document)
    if "anyOf" in schema:
        kinds = (values(part, document) for part in schema["anyOf"] if part.get("type") != "null")
        return " or ".join(kinds)
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"]) + _default(schema)
    if schema.get("type") == "array":
        return f"list of {values(schema.get('items', {}), document)}"
    return _KINDS.get(_kind(schema), "any value") + _limits(schema) + _default(schema)


_KINDS = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true`, `false`",
          "object": "object", "binary": "file"}  # fmt: skip


def _kind(schema: Json) -> str:
    is_file = schema.get("format") == "binary" or "contentMediaType" in schema
    return "binary" if is_file else str(schema.get("type"))


def _limits(schema: Json) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f", {schema['minimum']} to {schema['maximum']}"
    if "maxLength" in schema:
        return f", up to {schema['maxLength']} characters"
    return f", {code(schema['pattern'].replace('|', chr(92) + '|'))}" if "pattern" in schema else ""


def _default(schema: Json) -> str:
    default = schema.get("default")
    return "" if default in (None, [], {}, "") else f"; default {code(str(default).lower())}"


def _answers(route: Route) -> str:
    refusals = {
        status: answer["description"]
        for status, answer in sorted(route.operation["responses"].items())
        if status != "200" and status not in _EVERYWHERE
    }
    told = "; ".join(f"{status} {description}" for status, description in refusals.items())
    access = _access(route.operation) if route.wants_key else "Needs no key. "
    return f"{access}Refusals: {told}.\n" if told else f"{access.strip()}\n"


def _access(operation: Json) -> str:
    scopes = operation["security"][0][SECURITY_SCHEME]
    recorded = ", ".join(map(code, operation.get(AUDIT_DOCS, ())))
    needed = f"Needs the scope {code(scopes[0])}. " if scopes else "Needs any key. "
    return needed + (f"Recorded as {recorded}. " if recorded else "")
