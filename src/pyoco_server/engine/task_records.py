"""Task records of a run, as they leave its process."""

from operator import attrgetter, is_
from typing import Any

from pyoco.core.models import RunContext, TaskState as EngineTaskState

from pyoco_server.domain.runs.model import Reusable, TaskRecord, TaskState
from pyoco_server.domain.secrets.masking import Masks
from pyoco_server.engine.tasks import capped_text
from pyoco_server.engine.values import RecordBudget, RecordValues, is_exact

STATES = {state: TaskState(state.value) for state in EngineTaskState}
_fields_of = attrgetter(
    "state", "started_at", "ended_at", "duration_ms", "inputs", "output", "error", "traceback", "artifacts"
)


class TaskRecords:
    """Task records as they leave the process. Unchanged records are not converted again."""

    def __init__(
        self,
        context: RunContext,
        budget: RecordBudget,
        kept: dict[str, TaskRecord],
        masks: Masks,
        *,
        is_plain: bool,
    ) -> None:
        """`is_plain`: the flow has no control flow."""
        self._masks = masks
        self._context = context
        self._budget = budget
        self.kept = kept
        self._is_plain = is_plain
        self._known: dict[str, tuple[tuple[Any, ...], TaskRecord]] = {}

    @property
    def is_truncated(self) -> bool:
        return self._budget.is_exceeded

    def __call__(self, name: str) -> TaskRecord:
        if name in self.kept:
            return self.kept[name]
        record = self._context.ensure_task_record(name)
        # All of it: the engine fills in a record field by field, and another task may report in between.
        key = _fields_of(record)
        known = self._known.get(name)
        if known is None or not all(map(is_, key, known[0])):
            known = self._known[name] = (key, self._converted(name, record))
        return known[1]

    def _converted(self, name: str, record: Any) -> TaskRecord:
        inputs, output, artifacts = self._values(name, record)
        return TaskRecord(
            state=STATES[record.state],
            started_at=record.started_at,
            ended_at=record.ended_at,
            duration_ms=record.duration_ms,
            error=capped_text(record.error, self._masks),
            traceback=capped_text(record.traceback, self._masks),
            inputs=inputs,
            output=output,
            artifacts=artifacts,
            reusable=self._reusable(record, output),
        )

    def _values(self, name: str, record: Any) -> RecordValues:
        """Masked before they are cut, and after it: a preview contains the `repr` of objects."""
        values = (record.inputs, record.output, record.artifacts)
        if not self._masks:
            return self._budget.values_of(name, *values)
        shown = self._budget.values_of(name, *map(self._masks.value, values))
        inputs, output, artifacts = map(self._masks.value, shown)
        return inputs, output, artifacts

    def _reusable(self, record: Any, output: Any) -> Reusable | None:
        if not self._is_plain:
            return Reusable.CONTROL_FLOW
        if record.state is not EngineTaskState.SUCCEEDED:
            return None
        return Reusable.YES if is_exact(record.output, output) else Reusable.NOT_EXACT
