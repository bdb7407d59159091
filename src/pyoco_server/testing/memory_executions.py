"""The logs of executions in memory."""

from collections.abc import AsyncIterator

from pyoco_server.domain.execution.codec import decode_commit, encode_commit
from pyoco_server.domain.execution.records import LoggedCommit
from pyoco_server.domain.wire import Unreadable
from pyoco_server.testing.memory_store import MemoryStore
from pyoco_server.usecases.executions.ports import BEGINNING
from pyoco_server.usecases.ports import Revision, WrongRevision


class MemoryExecutionLog(MemoryStore[LoggedCommit]):
    """Every commit is kept in the store's history; its values are the last ones."""

    def __init__(self) -> None:
        super().__init__(encode_commit, decode_commit)

    async def append(self, logged: LoggedCommit, expected: Revision) -> Revision:
        commit = logged.commit
        last = self._values.get(commit.execution_id)
        if (0 if last is None else last[1]) != expected:
            raise WrongRevision(commit.execution_id)
        return self._put(commit.execution_id, logged)

    async def read(
        self, execution_id: str, after: Revision = BEGINNING
    ) -> AsyncIterator[tuple[LoggedCommit | None, Revision]]:
        for key, data, revision in list(self._history):
            if key == execution_id and data is not None and revision > after:
                yield _commit_in(data), revision


def _commit_in(data: bytes) -> LoggedCommit | None:
    try:
        return decode_commit(data)
    except Unreadable:
        return None
