"""What somebody defines under a name: find, list, write and remove it, each change in the audit trail."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import is_tag, nearest
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.errors import NatsUnavailable, PyocoServerError
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import MAX_TRIES, write
from pyoco_server.usecases.ports.stores import Store, Versioned, WrongRevision


class Named(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def created_at(self) -> float: ...


R = TypeVar("R", bound=Named)
V = TypeVar("V", bound=Struct)
P = TypeVar("P", bound=Struct)


class NounOf(Struct, Generic[R, V, P], frozen=True, kw_only=True):
    """What distinguishes one kind of definition from another."""

    noun: str
    """Of the audit trail and of errors."""
    record: type[R]
    key: Callable[[str | None, str], str]
    """Of tenant and name."""
    view: Callable[[R], V]
    page: Callable[[list[V], str | None], P]
    not_found: type[PyocoServerError]
    audited: Callable[[R], dict[str, Any]] | None = None
    """State in the audit trail, without secrets; None: the view."""

    def state(self, record: R | None) -> dict[str, Any] | None:
        if record is None:
            return None
        return to_builtins(self.view(record)) if self.audited is None else self.audited(record)


class NamedDefinitions(Generic[R, V, P]):
    def __init__(
        self,
        of: NounOf[R, V, P],
        store: Store[Any],
        listed: Callable[[str | None], Awaitable[Sequence[R]]],
        trail: AuditTrail,
        note: Callable[[str, Versioned[R] | None], None] = lambda _key, _found: None,
    ) -> None:
        """`store` may have other records, too. `listed`: those of a tenant. `note`: gets each own write."""
        self._of = of
        self._store = store
        self._listed = listed
        self._trail = trail
        self._note = note

    async def find(self, name: str, caller: Caller) -> V:
        """Raises the error of the noun."""
        return self._of.view(await self._stored(name, caller))

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> P:
        """Newest first."""
        found = await self._listed(caller.tenant_id)
        shown, more = newest_first(found, cursor, limit, digest_of(f"{self._of.noun}s", caller.tenant_id))
        return self._of.page([self._of.view(record) for record in shown], more)

    async def _stored(self, name: str, caller: Caller) -> R:
        found = await self._get(name, caller)
        if found is None:
            known = [record.name for record in await self._listed(caller.tenant_id)]
            raise self._of.not_found(f"{self._of.noun} not found: {name[:64]}{nearest(name, known)}")
        return found.value

    async def _get(self, name: str, caller: Caller) -> Versioned[R] | None:
        """What arrives from outside is no key until it is a name."""
        found = await self._store.get(self._of.key(caller.tenant_id, name)) if is_tag(name) else None
        return found if found is not None and isinstance(found.value, self._of.record) else None

    async def _put(self, name: str, wanted: R, caller: Caller) -> tuple[R | None, R]:
        """Replaces what is there, except for when that was created."""

        async def decide(known: R | None) -> R:
            return wanted if known is None else replace(wanted, created_at=known.created_at)  # type: ignore[type-var]

        return await self._write(name, decide, caller)

    async def _write(
        self, name: str, decide: Callable[[R | None], Awaitable[R]], caller: Caller
    ) -> tuple[R | None, R]:
        """What was there, and what is there now. `decide` may be called several times."""
        key = self._of.key(caller.tenant_id, name)
        for _ in range(MAX_TRIES):
            stored = await self._get(name, caller)
            before = None if stored is None else stored.value
            after = await decide(before)
            if after is before:
                return before, after
            try:
                revision = await write(self._store, key, after, stored)
            except WrongRevision:
                continue
            self._note(key, Versioned(after, revision))
            await self._record("put", name, caller, before, after)
            return before, after
        raise NatsUnavailable(f"{key} could not be written: {MAX_TRIES} consecutive conflicts")

    async def _remove(self, name: str, caller: Caller) -> None:
        """Raises the error of the noun."""
        record = await self._stored(name, caller)
        key = self._of.key(caller.tenant_id, name)
        await self._store.remove(key, None)
        self._note(key, None)
        await self._record("delete", name, caller, record, None)

    async def _record(self, verb: str, name: str, caller: Caller, before: R | None, after: R | None) -> None:
        target = ChangeTarget(self._of.noun, name)
        states = self._of.state(before), self._of.state(after)
        await self._trail.record(caller, f"{self._of.noun}.{verb}", target, *states)


def newest_first(records: Sequence[R], cursor: str | None, limit: int, of: str) -> tuple[list[R], str | None]:
    """A page, and the cursor of the next. `of`: what is listed, and whose."""
    after = None if cursor is None else place_of(cursor, of)
    ordered = sorted(records, key=lambda one: (-one.created_at, one.name))
    left = [
        one
        for one in ordered
        if after is None or (-one.created_at, one.name) > (-after.updated_at, after.run_id)
    ]
    shown = left[:limit]
    more = cursor_at(Place(shown[-1].created_at, shown[-1].name), of) if len(left) > limit else None
    return shown, more
