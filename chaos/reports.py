"""What a campaign is asked for, and what it answers."""

import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from event_workload import Events
from execution_workload import Executions
from workloads import Runs, Together, Workload


@dataclass
class Report:
    fault: str
    title: str
    facts: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    left_out: str = ""
    """Why it could not be tried here; empty when it was."""
    seconds: float = 0.0

    def must(self, promise: str, *, holds: bool) -> None:
        if not holds:
            self.broken.append(promise)


@dataclass(frozen=True)
class Scale:
    """How much of everything, per campaign."""

    acts: int
    """Runs that clients submit."""
    executions: int = 0
    events: int = 0
    clients: int = 8
    soak_sec: float = 60.0
    rest: float = 0.05
    min_faults: int = 1
    """A campaign of faults that has had fewer has not shown anything."""

    def workload(self, chance: random.Random) -> Together:
        """All three levels. Executions first: they and events leave runs behind that are to end."""
        parts: dict[Workload, int] = {Executions(): self.executions, Events(): self.events, Runs(): self.acts}
        return Together(parts, chance)

    @property
    def all_acts(self) -> int:
        return self.acts + self.executions + self.events


SHORT = Scale(acts=120, executions=24, events=24, soak_sec=10.0, rest=0.6)
LONG = Scale(acts=2_000, executions=200, events=200, clients=16, soak_sec=300.0, rest=0.7)
FULL = Scale(
    acts=10_000, executions=1_000, events=1_000, clients=24, soak_sec=3_600.0, rest=0.7, min_faults=100
)

Campaign = Callable[[int, Scale], Coroutine[Any, Any, Report]]
