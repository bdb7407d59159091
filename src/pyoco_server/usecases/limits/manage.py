"""Define limits, show who holds their places, pause and resume flows."""

from collections.abc import Callable

from msgspec import to_builtins

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import MAX_FLOW_NAME, is_tag, nearest
from pyoco_server.domain.limits.holders import KeyId
from pyoco_server.domain.limits.model import (
    Definition,
    FlowPause,
    Limit,
    LimitRecord,
    changed,
    limit_key,
    new_limit,
    pause_key,
)
from pyoco_server.domain.limits.views import LimitKeys, LimitKeyView, LimitList, LimitView, limit_view
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import InvalidRequest, LimitNotFound, NatsUnavailable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import write
from pyoco_server.usecases.limits.board import LimitBoard
from pyoco_server.usecases.limits.follow import FollowLimits
from pyoco_server.usecases.ports.stores import Clock, Revision, Store, Versioned, WrongRevision

log = get_logger(__name__)

MAX_TRIES = 100


class ManageLimits:
    def __init__(
        self,
        limits: Store[LimitRecord],
        board: LimitBoard,
        follow: FollowLimits,
        clock: Clock,
        new_id: Callable[[], str],
        trail: AuditTrail,
    ) -> None:
        self._trail = trail
        self._limits = limits
        self._board = board
        self._follow = follow
        self._clock = clock
        self._new_id = new_id

    async def put(self, name: str, definition: Definition, caller: Caller) -> tuple[LimitView, bool]:
        """The limit, and whether it is new. Raises InvalidRequest."""
        wanted = new_limit(
            name, definition, tenant_id=caller.tenant_id, rules=self._new_id(), now=self._clock()
        )
        for _ in range(MAX_TRIES):
            stored = await self._limits.get(wanted.store_key)
            known = None if stored is None else stored.value
            limit = changed(known, wanted) if isinstance(known, Limit) else wanted
            if limit is known:
                return self._view(limit), False
            try:
                await self._write(limit, stored)
            except WrongRevision:
                continue
            log.info("limit defined", action="limit.defined", limit=name, by=caller.name)
            await self._record(caller, "limit.put", known, limit)
            return self._view(limit), stored is None
        raise NatsUnavailable(f"limit {name} could not be written")

    async def delete(self, name: str, caller: Caller) -> None:
        """The runs that wait for it go on at once. Raises LimitNotFound."""
        stored = await self._stored(name, caller)
        await self._remove(stored.value.store_key, stored.revision)
        log.info("limit deleted", action="limit.deleted", limit=name, by=caller.name)
        await self._record(caller, "limit.delete", stored.value, None)

    async def find(self, name: str, caller: Caller) -> LimitView:
        """Raises LimitNotFound."""
        stored = await self._stored(name, caller)
        assert isinstance(stored.value, Limit)  # noqa: S101 - it has the key of one
        return self._view(stored.value)

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> LimitList:
        """By name."""
        await self._follow.definitions_known()
        known = self._board.definitions.limits(caller.tenant_id)
        of = digest_of("limits", caller.tenant_id)
        after = "" if cursor is None else place_of(cursor, of).run_id
        names = sorted(name for name in known if name > after)
        shown = [self._view(known[name].value) for name in names[:limit]]
        more = len(names) > limit
        return LimitList(shown, cursor_at(Place(0.0, shown[-1].name), of) if more else None)

    async def keys(self, name: str, cursor: str | None, limit: int, caller: Caller) -> LimitKeys:
        """Keys with holders or waiting runs, in order. Raises LimitNotFound."""
        await self._stored(name, caller)
        of = digest_of("limit keys", caller.tenant_id, name)
        after = None if cursor is None else place_of(cursor, of).run_id
        ids = sorted(self._board.keys(caller.tenant_id, name))
        found = [
            LimitKeyView(
                key=one.key, holders=len(self._board.holders(one)), waiting=self._board.lines.count(one)
            )
            for one in ids
            if after is None or one.key > after
        ]
        used = [one for one in found if one.holders or one.waiting]
        more = len(used) > limit
        return LimitKeys(used[:limit], cursor_at(Place(0.0, used[limit - 1].key), of) if more else None)

    def _view(self, limit: Limit) -> LimitView:
        keys = self._board.keys(limit.tenant_id, limit.name)
        return limit_view(
            limit,
            holders=sum(len(self._board.holders(of)) for of in keys),
            waiting=sum(self._board.lines.count(of) for of in keys),
            admitted=sum(self._admitted(of) for of in keys),
        )

    def _admitted(self, of: KeyId) -> int:
        record = self._board.record(of)
        return 0 if record is None else record.value.admitted

    async def _stored(self, name: str, caller: Caller) -> Versioned[LimitRecord]:
        stored = await self._limits.get(limit_key(caller.tenant_id, name)) if is_tag(name) else None
        if stored is None:
            known = self._board.definitions.limits(caller.tenant_id)
            raise LimitNotFound(f"limit not found: {name[:64]}{nearest(name, known)}")
        return stored

    async def _write(self, record: LimitRecord, stored: Versioned[LimitRecord] | None) -> None:
        """Raises WrongRevision."""
        revision = await write(self._limits, record.store_key, record, stored)
        self._board.note_definition(record.store_key, Versioned(record, revision))
        self._board.definitions_noted()

    async def _remove(self, key: str, seen: Revision) -> None:
        """The feed may have shown what somebody defined since; that stays."""
        await self._limits.remove(key, None)
        self._board.forget_definition(key, seen + 1)
        self._board.definitions_noted()

    # Flows

    async def pause_flow(
        self, flow: str, reason: str | None, until: float | None, caller: Caller
    ) -> FlowPause | None:
        """Runs that are submitted from now on wait. None: `until` is over already. Raises InvalidRequest."""
        if not 1 <= len(flow) <= MAX_FLOW_NAME:
            raise InvalidRequest(f"flow: must have 1 to {MAX_FLOW_NAME} characters")
        now = self._clock()
        if until is not None and until <= now:
            raise InvalidRequest("until: must be in the future")
        for _ in range(MAX_TRIES):
            stored = await self._limits.get(pause_key(caller.tenant_id, flow))
            known = None if stored is None else stored.value
            since = known.since if isinstance(known, FlowPause) and not known.is_over(now) else now
            pause = FlowPause(flow=flow, tenant_id=caller.tenant_id, since=since, reason=reason, until=until)
            try:
                await self._write(pause, stored)
            except WrongRevision:
                continue
            log.info("flow paused", action="flow.paused", flow_name=flow, until=until, by=caller.name)
            await self._record(caller, "flow.pause", known, pause)
            return pause
        raise NatsUnavailable(f"the pause of {flow} could not be written")

    async def resume_flow(self, flow: str, caller: Caller) -> None:
        """No error if it is not paused."""
        key = pause_key(caller.tenant_id, flow)
        stored = await self._limits.get(key)
        if stored is not None:
            await self._remove(key, stored.revision)
            log.info("flow resumed", action="flow.resumed", flow_name=flow, by=caller.name)
            await self._record(caller, "flow.resume", stored.value, None)

    async def _record(
        self, caller: Caller, action: str, before: LimitRecord | None, after: LimitRecord | None
    ) -> None:
        await self._trail.record(caller, action, _target(after or before), _state(before), _state(after))


def _target(record: LimitRecord | None) -> ChangeTarget:
    assert record is not None  # noqa: S101 - one of two is there
    return ChangeTarget(*(("limit", record.name) if isinstance(record, Limit) else ("flow", record.flow)))


def _state(record: LimitRecord | None) -> dict[str, object] | None:
    if record is None:
        return None
    shown = record.definition if isinstance(record, Limit) else record.pause
    found: dict[str, object] = to_builtins(shown)
    return found
