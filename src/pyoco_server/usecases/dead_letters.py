"""Dead letters: list them, run their runs again, discard them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.dead_letters import (
    DeadLetterPage,
    DeadLetterView,
    LetterFilter,
    LetterMark,
    StoredLetter,
    letter_view,
)
from pyoco_server.domain.inputs import is_run_id
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import DeadLetterNotFound, InvalidListQuery, NotRedrivable, RunNotRetriable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller, may_see_without_tenant
from pyoco_server.usecases.ports.runs import DeadLetterStore, RunIndex, RunStore
from pyoco_server.usecases.ports.stores import Store, WrongRevision
from pyoco_server.usecases.runs.retry import RetryRun

log = get_logger(__name__)

WINDOW = 500
"""Letters read at once."""
MAX_READ = 10_000
"""Per page: a rare match may leave a page short, and its cursor goes on."""
MAX_DIGITS = 18


class ReadDeadLetters:
    def __init__(self, letters: DeadLetterStore, marks: Store[LetterMark], index: RunIndex) -> None:
        self._letters = letters
        self._marks = marks
        self._index = index

    async def page(
        self, wanted: LetterFilter, cursor: str | None, limit: int, caller: Caller
    ) -> DeadLetterPage:
        """Newest first."""
        of = digest_of("dead letters", caller.tenant_id, wanted.reason, wanted.tag, wanted.flow)
        before = None if cursor is None else _number_in(cursor, of)
        found: list[StoredLetter] = []
        read, next_cursor = 0, None
        async with aclosing(self._walk(wanted, before)) as letters:
            async for stored in letters:
                read += 1
                if len(found) == limit or read > MAX_READ:
                    next_cursor = cursor_at(Place(float(stored.number + 1), ""), of)
                    break
                if self._is_shown(stored, wanted, caller):
                    found.append(stored)
        return DeadLetterPage(await asyncio.gather(*map(self._view, found)), next_cursor)

    async def matching(self, wanted: LetterFilter, caller: Caller) -> list[str]:
        """Ids of all that match, newest first."""
        async with aclosing(self._walk(wanted, None)) as letters:
            return [stored.id async for stored in letters if self._is_shown(stored, wanted, caller)]

    async def find(self, letter_id: str, caller: Caller) -> DeadLetterView:
        return await self._view(await self.stored(letter_id, caller))

    async def stored(self, letter_id: str, caller: Caller) -> StoredLetter:
        """Raises DeadLetterNotFound."""
        is_number = letter_id.isascii() and letter_id.isdigit() and len(letter_id) <= MAX_DIGITS
        found = await self._letters.get(int(letter_id)) if is_number else None
        if found is None or found.id != letter_id or not self._may_see(caller, found):
            raise DeadLetterNotFound
        return found

    async def _walk(self, wanted: LetterFilter, before: int | None) -> AsyncGenerator[StoredLetter, None]:
        while True:
            window = await self._letters.before(before, WINDOW)
            for stored in window.items:
                yield stored
            before = window.start
            if before <= window.first or (window.items and wanted.is_over_at(window.items[-1])):
                return

    async def _view(self, stored: StoredLetter) -> DeadLetterView:
        mark = await self._marks.get(stored.mark_key)
        return letter_view(stored, None if mark is None else mark.value)

    def _is_shown(self, stored: StoredLetter, wanted: LetterFilter, caller: Caller) -> bool:
        return wanted.matches(stored) and self._may_see(caller, stored)

    def _may_see(self, caller: Caller, stored: StoredLetter) -> bool:
        """Another tenant's letter is treated as missing. Older workers store no tenant: its run has it."""
        if caller.tenant_id is None:
            return True
        if stored.tenant_id is not None:
            return stored.tenant_id == caller.tenant_id
        run_id = stored.letter.run_id
        if run_id is not None and self._index.knows(run_id):
            return self._index.is_of(run_id, caller.tenant_id)
        return may_see_without_tenant(caller)


def _number_in(cursor: str, of: str) -> int:
    number = place_of(cursor, of).updated_at
    if not 0 < number < 10**MAX_DIGITS:
        raise InvalidListQuery("invalid list query: malformed cursor")
    return int(number)


class RedriveDeadLetter:
    """Each step may be repeated: the run's id follows from the letter, and the mark comes last."""

    def __init__(
        self,
        read: ReadDeadLetters,
        marks: Store[LetterMark],
        runs: RunStore,
        retry: RetryRun,
        trail: AuditTrail,
    ) -> None:
        self._read = read
        self._marks = marks
        self._runs = runs
        self._retry = retry
        self._trail = trail

    async def __call__(self, letter_id: str, caller: Caller) -> str:
        """The id of the new run, the same at every call. Raises DeadLetterNotFound or NotRedrivable."""
        run_id, is_first = await self.unrecorded(letter_id, caller)
        if is_first:
            log.info("dead letter redriven", action="dead_letter.redrive", letter_id=letter_id, run_id=run_id)
            target = ChangeTarget("dead_letter", letter_id)
            await self._trail.record(caller, "dead_letter.redrive", target, None, {"redriven_as": run_id})
        return run_id

    async def unrecorded(self, letter_id: str, caller: Caller) -> tuple[str, bool]:
        """For many at once, which leave one record together: the run, and whether this was the first time."""
        stored = await self._read.stored(letter_id, caller)
        mark = await self._marks.get(stored.mark_key)
        if mark is not None:
            return mark.value.redriven_as, False
        await self._place(stored, caller)
        try:
            await self._marks.create(stored.mark_key, LetterMark(stored.redriven_run_id))
        except WrongRevision:
            return stored.redriven_run_id, False
        return stored.redriven_run_id, True

    async def _place(self, stored: StoredLetter, caller: Caller) -> None:
        run_id = stored.letter.run_id
        if run_id is None or not is_run_id(run_id):
            raise NotRedrivable("the job is unreadable, so there is no run to repeat")
        run = await self._runs.get(run_id)
        if run is None:
            raise NotRedrivable(
                f"run {run_id} is not stored: it was never accepted, was deleted, or has expired"
            )
        if run.value.execution_id is not None:
            raise NotRedrivable(
                f"run {run_id} belongs to a node of execution {run.value.execution_id}; "
                "retry the node, or run the execution again"
            )
        try:
            await self._retry.as_run(run.value, caller, stored.redriven_run_id)
        except RunNotRetriable as error:
            raise NotRedrivable(error.detail) from error


class DiscardDeadLetter:
    def __init__(self, read: ReadDeadLetters, letters: DeadLetterStore, trail: AuditTrail) -> None:
        self._read = read
        self._letters = letters
        self._trail = trail

    async def __call__(self, letter_id: str, caller: Caller) -> None:
        """Raises DeadLetterNotFound."""
        letter = await self._read.find(letter_id, caller)
        if not await self._letters.remove(int(letter_id)):
            raise DeadLetterNotFound
        log.info("dead letter discarded", action="dead_letter.discard", letter_id=letter_id, by=caller.name)
        target = ChangeTarget("dead_letter", letter_id)
        await self._trail.record(caller, "dead_letter.discard", target, letter, None)
