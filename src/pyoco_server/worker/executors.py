"""What the pipeline needs from whoever runs flows."""

from collections.abc import Callable
from typing import Protocol

from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowOutcome, FlowProgress


class FlowExecutor(Protocol):
    async def run(self, job: Job, on_progress: Callable[[FlowProgress], None]) -> FlowOutcome:
        """Resolve and run the job's flow. Does not raise for what the flow does."""
        ...

    def cancel(self) -> None:
        """Ask the running flow to stop."""
        ...

    def close(self) -> None: ...
