"""The JSON Schema of a flow's params, within limits: checking must stay cheap, whatever the schema contains.

The library keeps the interpreter while it works, so a slow check would stop the whole gateway. Patterns
take linear time. Everything else costs at most one step per part of the schema and part of the params,
once references are replaced by what they refer to; `unevaluated…` repeats the steps of what it is beside.
Both numbers are limited, and so is their product.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import unquote

import jsonschema_rs
import msgspec

from pyoco_server.errors import InvalidRequest

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SCHEMA_BYTES = 64 * 1024
MAX_PARTS = 2_000
"""Parts of a schema with its references replaced."""
MAX_DEPTH = 100
MAX_STEPS = 4_000_000
"""Of one check: at most some tenths of a second, 1 µs for most."""
TEXT_STEP = 16
"""Characters of a text that count as one part."""
MAX_PATTERN_BYTES = 1 << 20
"""A compiled pattern; `(a{1000}){1000}` is above it."""
UNUSABLE_PATTERN = "is not a supported pattern (too large, a mistake, look-around or a back reference)"
MAX_PROBLEMS = 10
FEW_PARTS = 1_000
"""The library finds all problems or only the first; in large params, there may be thousands."""

_ONE = (
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_PLAIN = {"$schema", "title", "description", "type", "properties", "required", "additionalProperties"}
_REPEATING = ("unevaluatedItems", "unevaluatedProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("dependentSchemas", "patternProperties", "properties")
_DEFINITIONS = ("$defs", "definitions")
_REFUSED = ("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary")


class ParamsSchema:
    """A schema, ready for checks. Raises InvalidRequest."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._parts = _checked_size(schema)
        self._schema = schema
        try:
            jsonschema_rs.meta.validate(schema)
            self._validator = jsonschema_rs.Draft202012Validator(
                schema,
                validate_formats=True,
                mask="the value",  # params may be secret, and messages are logged
                retriever=_retrieve_nothing,
                pattern_options=jsonschema_rs.RegexOptions(
                    size_limit=MAX_PATTERN_BYTES, dfa_size_limit=MAX_PATTERN_BYTES
                ),
            )
        except ValueError as error:
            raise InvalidRequest(f"params_schema{_unusable(error)}") from error

    def check(self, params: dict[str, Any], stored: Iterable[str] = ()) -> None:
        """Raises InvalidRequest, which names what is wrong and where, but no values.

        `stored`: params that are not known here, or parts of them, because they are large.
        """
        for name in stored:
            if not self._is_free(name):
                raise InvalidRequest(
                    f"params.{name}: a large value cannot be checked against the params_schema"
                )
        most = MAX_STEPS // self._parts
        parts = sum(islice(_weights(params), most + 1))
        if parts > most:
            raise InvalidRequest(
                f"params: too large to be checked against the params_schema: more than {most:,} values"
            )
        if not self._validator.is_valid(params):
            raise InvalidRequest("; ".join(self._problems(params, parts)))

    def _is_free(self, name: str) -> bool:
        """Whether any value of a param is valid, by a plain look at the top of the schema."""
        properties, others = (self._schema.get(key, True) for key in ("properties", "additionalProperties"))
        of_param = properties.get(name, True) if isinstance(properties, dict) else True
        return self._schema.keys() <= _PLAIN and all(one in (True, {}) for one in (of_param, others))

    def _problems(self, params: dict[str, Any], parts: int) -> list[str]:
        if parts > FEW_PARTS:
            try:
                self._validator.validate(params)
            except jsonschema_rs.ValidationError as error:
                return [_problem(error)]
        return [_problem(error) for error in islice(self._validator.iter_errors(params), MAX_PROBLEMS)]


def _problem(error: jsonschema_rs.ValidationError) -> str:
    return f"{_place('params', error.instance_path)}: {error.message[:500]}"


def _place(start: str, path: list[str | int]) -> str:
    return ".".join([start, *map(str, path)])


def _unusable(error: ValueError) -> str:
    if isinstance(error, jsonschema_rs.ValidationError):
        is_pattern = error.message.endswith('is not a "regex"')
        problem = UNUSABLE_PATTERN if is_pattern else error.message[:500]
        return f"{_place('', error.instance_path)}: {problem}"
    return f": {str(error)[:500]}"


def _retrieve_nothing(uri: str) -> Any:
    raise ValueError(f"{uri}: only references within the schema are supported")


def _weights(value: Any) -> Iterator[int]:
    """One per value; more for a long text, because patterns read all of it."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
            waiting.extend(one)
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, str):
            yield 1 + len(one) // TEXT_STEP
            continue
        yield 1


# The size of a schema


def _checked_size(schema: dict[str, Any]) -> int:
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"params_schema: more than {MAX_SCHEMA_BYTES:,} bytes of JSON")
    if str(schema.get("$schema", DIALECT)).rstrip("#") != DIALECT:
        raise InvalidRequest(f"params_schema.$schema: only {DIALECT} is supported")
    count, repeats = 0, 1
    for keyword in _parts(schema, schema, ("params_schema",), ()):
        count += 1
        repeats += keyword in _REPEATING
        if count > MAX_PARTS:
            raise InvalidRequest(
                f"params_schema: more than {MAX_PARTS:,} keywords, counting what references refer to"
            )
    return max(count, 1) * repeats


def _parts(root: dict[str, Any], part: Any, place: tuple[str, ...], refs: tuple[str, ...]) -> Iterator[str]:
    """All keywords. `refs`: the references that led here."""
    if not isinstance(part, dict):  # true, false, or refused by the library
        yield ""
        return
    if len(place) > MAX_DEPTH:
        raise InvalidRequest(f"params_schema: nested deeper than {MAX_DEPTH}")
    _check_keywords(part, place)
    yield from part
    for step, inner in _inside(part):
        yield from _parts(root, inner, (*place, *step), refs)
    if "$ref" in part:
        ref = part["$ref"]
        if ref in refs:
            raise InvalidRequest(
                f"{'.'.join(place)}.$ref: {ref!r} refers to itself; recursion is not supported"
            )
        yield from _parts(root, _target(root, ref, place), (*place, "$ref"), (*refs, ref))


def _inside(part: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Definitions count where they are used; they are visited to find what is refused in them."""
    for name in _ONE:
        if name in part:
            yield (name,), part[name]
    for name in _LISTS:
        for index, inner in enumerate(part[name] if isinstance(part.get(name), list) else ()):
            yield (name, str(index)), inner
    for name in (*_MAPS, *_DEFINITIONS):
        for key, inner in (part[name] if isinstance(part.get(name), dict) else {}).items():
            yield (name, key), inner


def _check_keywords(part: dict[str, Any], place: tuple[str, ...]) -> None:
    for name in _REFUSED:
        if name in part:
            raise InvalidRequest(f"{'.'.join(place)}.{name}: is not supported")
    if "$id" in part and len(place) > 1:
        raise InvalidRequest(f"{'.'.join(place)}.$id: is supported at the top only")
    ref = part.get("$ref")
    if ref is not None and not (isinstance(ref, str) and (ref == "#" or ref.startswith("#/"))):
        raise InvalidRequest(f"{'.'.join(place)}.$ref: must begin with #/ (no other document is read)")


def _target(root: dict[str, Any], ref: str, place: tuple[str, ...]) -> Any:
    found: Any = root
    for step in ref.split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (LookupError, TypeError, ValueError):
            raise InvalidRequest(f"{'.'.join(place)}.$ref: {ref!r} refers to nothing") from None
    return found
