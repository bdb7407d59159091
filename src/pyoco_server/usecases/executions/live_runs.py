"""The runs of executions that have not ended, as this process has heard of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from pyoco_server.domain.execution.node_runs import RunFact
from pyoco_server.domain.runs import RunSnapshot, RunStatus


class LiveRuns:
    def __init__(self) -> None:
        self._by_execution: dict[str, dict[str, RunStatus]] = defaultdict(dict)

    def heard(self, run: RunSnapshot) -> bool:
        """Whether its status is news: most changes of a run are signs of life."""
        assert run.execution_id is not None  # noqa: S101 - the caller asks for runs of executions only
        known = self.of(run.execution_id).get(run.run_id)
        if not run.status.is_terminal:
            self._by_execution[run.execution_id][run.run_id] = run.status
        elif known is not None:
            self._forget(run.execution_id, run.run_id)
        return known is not run.status

    def of(self, execution_id: str) -> Mapping[str, RunStatus]:
        return self._by_execution.get(execution_id, {})

    def executions(self) -> Iterable[str]:
        """Those that have such runs, whether they have ended themselves or not."""
        return list(self._by_execution)

    def _forget(self, execution_id: str, run_id: str) -> None:
        runs = self._by_execution[execution_id]
        runs.pop(run_id, None)
        if not runs:
            del self._by_execution[execution_id]


def fact_of(run: RunSnapshot) -> RunFact:
    """What an execution needs to know of a run."""
    if run.status is RunStatus.COMPLETED and run.result is None and _was_cut(run):
        # A run of this kind has ended well, but a node whose output nobody can read has not.
        text = "its run completed, but its result was too large to be kept; return less, or where it is"
        return RunFact(RunStatus.FAILED, error=text, code="OUTPUT_TOO_LARGE")
    return RunFact(run.status, run.result, run.error)


def _was_cut(run: RunSnapshot) -> bool:
    """The second: as workers before `result_truncated` left it."""
    return run.result_truncated or run.task_records_truncated
