"""Task records cross from an executor to its worker when they change, not with every step of their run.

The end of a run carries them all again: a step may still be on its way to the socket then.
"""

import threading

from msgspec.structs import replace

from pyoco_server.domain.outcomes import FlowProgress
from pyoco_server.domain.runs import TaskRecord


class SentRecords:
    """The executor's side: which records of a run it has sent as they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, TaskRecord] = {}

    def new_in(self, progress: FlowProgress) -> FlowProgress:
        with self._lock:
            new = {
                name: record
                for name, record in progress.task_records.items()
                if self._sent.get(name) is not record
            }
            self._sent.update(new)
        return replace(progress, task_records=new)


class KnownRecords:
    """The worker's side: all records of a run that have arrived."""

    def __init__(self) -> None:
        self._known: dict[str, TaskRecord] = {}

    def completed(self, progress: FlowProgress) -> FlowProgress:
        self._known.update(progress.task_records)
        in_order = {name: self._known[name] for name in progress.tasks if name in self._known}
        return replace(progress, task_records={**in_order, **self._known})
