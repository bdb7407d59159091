"""Many submissions in one call, each answered on its own."""

import asyncio
from collections.abc import Sequence

from pyoco_server.domain.jobs import Submission
from pyoco_server.domain.runs import RunSnapshot
from pyoco_server.errors import PyocoServerError
from pyoco_server.usecases.submit_run import SubmitRun

IN_FLIGHT = 100
"""At once: enough for JetStream to batch its writes, few enough that others get their turn."""


class SubmitBatch:
    def __init__(self, submit_run: SubmitRun) -> None:
        self._submit_run = submit_run

    async def __call__(
        self, submissions: Sequence[Submission | PyocoServerError]
    ) -> list[RunSnapshot | PyocoServerError]:
        """An answer for each, in order: the accepted run, or why not."""
        turns = asyncio.Semaphore(IN_FLIGHT)
        return await asyncio.gather(*(self._one(submission, turns) for submission in submissions))

    async def _one(
        self, submission: Submission | PyocoServerError, turns: asyncio.Semaphore
    ) -> RunSnapshot | PyocoServerError:
        if isinstance(submission, PyocoServerError):
            return submission
        async with turns:
            try:
                return await self._submit_run(submission)
            except PyocoServerError as error:
                return error
