"""What pyoco asks of every task on every run, answered once: which parameters its function has."""

import inspect
from types import FunctionType

from pyoco.core.models import Flow


def remember_signatures(flow: Flow) -> None:
    """`inspect.signature` takes longer than a tiny task; of a function that carries one it answers that."""
    for task in flow.tasks:
        function = task.func
        if type(function) is FunctionType and "__signature__" not in function.__dict__:
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
