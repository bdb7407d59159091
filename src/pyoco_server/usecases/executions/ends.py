"""The end of an execution, told once: by whoever appended it."""

from typing import Protocol

from pyoco_server.domain.execution.state import Execution
from pyoco_server.logs import get_logger

log = get_logger(__name__)


class EndMeter(Protocol):
    def execution_ended(self, status: str) -> None: ...


def tell_if_ended(meter: EndMeter, before: Execution, after: Execution) -> None:
    if before.is_terminal or not after.is_terminal:
        return
    meter.execution_ended(after.status.value)
    log.info(
        "execution ended",
        action="execution.ended",
        execution_id=after.execution_id,
        graph_id=after.graph_id,
        status=after.status.value,
    )
