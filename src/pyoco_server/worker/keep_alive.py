"""Signs of life while a run is going: to the queue (in_progress) and in the run's snapshot (heartbeat).

They are different things: the first keeps JetStream from delivering the job again, the second tells people.
"""

import asyncio

from pyoco_server.errors import ProgressNotSent
from pyoco_server.logs import best_effort, get_logger
from pyoco_server.usecases.ports import Delivery
from pyoco_server.worker.recorder import RunRecorder

log = get_logger(__name__)


async def keep_delivery(delivery: Delivery, interval: float) -> None:
    """A failed sign is not fatal: the next one may succeed before AckWait has passed."""
    while True:
        await asyncio.sleep(interval)
        with best_effort(log, "job.in_progress", ProgressNotSent, subject=delivery.subject):
            await delivery.in_progress()


async def keep_beating(recorder: RunRecorder, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        recorder.beat()
