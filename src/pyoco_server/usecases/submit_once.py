"""Submit with an `Idempotency-Key`: a repeat is the same run, whatever happened in between."""

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from pyoco_server.domain.idempotency import Claim, claim_key, request_digest
from pyoco_server.domain.jobs import Submission, accept, check_names
from pyoco_server.domain.runs import replace
from pyoco_server.errors import InvalidRequest, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.ports import ClaimStore, Clock, Versioned, WrongRevision
from pyoco_server.usecases.submit_run import SubmitRun

log = get_logger(__name__)

MAX_TRIES = 3
"""A claim can expire between finding it and reading it; not three times in a row."""


class Submitted(Struct, frozen=True):
    run_id: str
    is_replayed: bool


class SubmitOnce:
    def __init__(
        self, claims: ClaimStore, submit_run: SubmitRun, clock: Clock, new_run_id: Callable[[], str]
    ) -> None:
        self._claims = claims
        self._submit_run = submit_run
        self._clock = clock
        self._new_run_id = new_run_id

    async def __call__(self, submission: Submission, key: str) -> Submitted:
        check_names(submission)  # what is refused must not use up its key
        place, wanted = claim_key(submission.tenant_id, key), request_digest(submission)
        claim, is_new = await self._claim(place, wanted)
        if claim.value.request != wanted:
            raise InvalidRequest("this Idempotency-Key was used with another request")
        job = accept(submission, claim.value.run_id, claim.value.claimed_at)
        if claim.value.is_accepted:
            await self._submit_run.carry_on(job)
        else:
            await self._submit_run.place_claimed(job, partial(self._mark_accepted, place, claim))
        return Submitted(claim.value.run_id, is_replayed=not is_new)

    async def _claim(self, place: str, request: str) -> tuple[Versioned[Claim], bool]:
        """The claim of the key, and whether it is ours."""
        for _ in range(MAX_TRIES):
            claim = Claim(run_id=self._new_run_id(), request=request, claimed_at=self._clock())
            try:
                return Versioned(claim, await self._claims.create(place, claim)), True
            except WrongRevision:
                found = await self._claims.get(place)
            if found is not None:
                return found, False
        raise NatsUnavailable("the Idempotency-Key could not be claimed")

    async def _mark_accepted(self, place: str, claim: Versioned[Claim]) -> None:
        """Without the mark a repeat would start the run again once its snapshot has expired."""
        try:
            await self._claims.update(place, replace(claim.value, is_accepted=True), claim.revision)
        except WrongRevision:
            log.debug("a repeat marked the claim first", action="idempotency.marked")
