"""Which task of a flow waits for which, so that people can be shown the flow and not only a list."""

from collections.abc import Iterable
from typing import Any

from pyoco.core.models import Flow
from pyoco.dsl.nodes import SwitchNode, TaskNode

Dependencies = dict[str, tuple[str, ...]]


def dependencies_of(flow: Flow) -> Dependencies:
    """The names that each task waits for. Of a flow with loops and switches: the order it is written in."""
    if flow.has_control_flow():
        return _Written().of(flow.build_program().steps)
    # A task object may be part of several flows: only dependencies inside this one count.
    return {
        task.name: tuple(sorted(before.name for before in task.dependencies & flow.tasks))
        for task in sorted(flow.tasks, key=lambda task: str(task.name))
    }


class _Written:
    """Walks a program once, in its order. A task that comes again adds nothing."""

    def __init__(self) -> None:
        self._found: Dependencies = {}

    def of(self, steps: Iterable[Any]) -> Dependencies:
        self._sequence(steps, ())
        return self._found

    def _sequence(self, steps: Iterable[Any], before: tuple[str, ...]) -> tuple[str, ...]:
        """The names after which the next step comes."""
        for step in steps:
            before = self._step(step, before)
        return before

    def _step(self, step: Any, before: tuple[str, ...]) -> tuple[str, ...]:
        if isinstance(step, TaskNode):
            self._found.setdefault(step.task.name, before)
            return (step.task.name,)
        if isinstance(step, SwitchNode):
            ends = [self._sequence(case.target.steps, before) for case in step.cases]
            # No case may apply, and then the next step comes right after what was before.
            return tuple(dict.fromkeys(name for end in [*ends, before] for name in end))
        inside = step.body.steps if hasattr(step, "body") else getattr(step, "steps", ())
        return self._sequence(inside, before)
