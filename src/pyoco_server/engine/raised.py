"""An exception in users' code, as the worker logs it."""

from pyoco_server.domain.outcomes import Raised
from pyoco_server.engine.values import json_text
from pyoco_server.logs import exception_fields

MAX_TEXT = 32_768
"""Deep recursions and long messages are cut in the middle: the ends say what and where."""


def raised(error: BaseException) -> Raised:
    return Raised(**{name: _cut(json_text(text)) for name, text in exception_fields(error).items()})


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"
