"""What the pipeline needs from whoever runs flows: processes, or a thread of this one."""

from collections.abc import Callable
from typing import Protocol

from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowListener, FlowOutcome
from pyoco_server.domain.runs import CodeWheel


class RunningFlow(Protocol):
    @property
    def wheels(self) -> tuple[CodeWheel, ...]:
        """The synced code it runs with."""
        ...

    @property
    def busy_sec(self) -> float:
        """How long an executor could do nothing else, once it has ended."""
        ...

    async def outcome(self) -> FlowOutcome | None:
        """How the flow ended; None: it was never begun. Does not raise for what the flow does."""
        ...

    def cancel(self) -> None:
        """Ask the flow to stop at its next task."""
        ...

    def go_live(self) -> None:
        """Have the progress told, now and with every step. Before that nothing is told."""
        ...

    def written(self) -> None:
        """The last told step is written; the next may be told."""
        ...

    def kill(self) -> bool:
        """End the flow by force. False: that cannot be done here."""
        ...


class FlowExecutors(Protocol):
    @property
    def capacity(self) -> int:
        """How many flows can run at once, now."""
        ...

    def when_it_changes(self, tell: Callable[[], None]) -> None:
        """Have somebody told when the capacity is another."""
        ...

    async def start(self, job: Job, listener: FlowListener, patience: float) -> RunningFlow | None:
        """Run the job's flow. None: nobody was free to do it within `patience` seconds."""
        ...

    async def close(self) -> None: ...
