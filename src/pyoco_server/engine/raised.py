"""An exception in users' code, as the worker logs it."""

from typing import Any

from pyoco_server.domain.outcomes import Raised
from pyoco_server.engine.values import capped_text
from pyoco_server.logs import exception_fields


def raised(error: BaseException) -> Raised:
    fields: dict[str, Any] = {name: capped_text(text) for name, text in exception_fields(error).items()}
    return Raised(**fields)
