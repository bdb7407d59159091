"""Set, list and delete secrets and variables; seal all secrets with the first key again."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.inputs import is_tag, nearest
from pyoco_server.domain.runs.listing import Place, cursor_at, digest_of, place_of
from pyoco_server.domain.secrets.masking import MASK
from pyoco_server.domain.secrets.model import (
    Secret,
    SecretList,
    SecretRecord,
    Variable,
    VariableList,
    VariableRecord,
    bound_to,
    check_name,
    of_tenant,
    secret_view,
    stored_key,
    variable_view,
)
from pyoco_server.errors import SecretNotFound, SecretsKeyMissing, VariableNotFound
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import change_value
from pyoco_server.usecases.ports.gateway import ListedStore
from pyoco_server.usecases.ports.secrets import Seal, WrongKey
from pyoco_server.usecases.ports.stores import Clock, WrongRevision

log = get_logger(__name__)


class _Record(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def created_at(self) -> float: ...


R = TypeVar("R", bound=_Record)


def _page(records: Sequence[R], of: str, cursor: str | None, limit: int) -> tuple[list[R], str | None]:
    """Newest first."""
    after = None if cursor is None else place_of(cursor, of)
    ordered = sorted(records, key=lambda record: (-record.created_at, record.name))
    left = [
        record
        for record in ordered
        if after is None or (-record.created_at, record.name) > (-after.updated_at, after.run_id)
    ]
    shown = left[:limit]
    more = len(left) > limit
    return shown, cursor_at(Place(shown[-1].created_at, shown[-1].name), of) if more else None


class ManageSecrets:
    def __init__(
        self, secrets: ListedStore[SecretRecord], seal: Seal, clock: Clock, trail: AuditTrail
    ) -> None:
        self._secrets = secrets
        self._seal = seal
        self._clock = clock
        self._trail = trail

    async def put(self, name: str, value: str, caller: Caller) -> tuple[Secret, bool]:
        """The secret, and whether it is new. Raises InvalidRequest or SecretsKeyMissing."""
        check_name(name)
        if not self._seal.has_key:
            raise SecretsKeyMissing
        tenant, now = caller.tenant_id, self._clock()
        sealed = self._seal.seal(value, bound_to(tenant, name))
        before: SecretRecord | None = None

        def changed(known: SecretRecord | None) -> SecretRecord:
            nonlocal before
            before = known
            created = now if known is None else known.created_at
            return SecretRecord(
                name=name, sealed=sealed, created_at=created, updated_at=now, tenant_id=tenant
            )

        written = await change_value(self._secrets, stored_key(tenant, name), changed)
        assert written is not None  # noqa: S101 - `changed` always changes it
        log.info("secret set", action="secret.set", secret=name, by=caller.name)
        await self._record(caller, "secret.put", name, before, written)
        return secret_view(written), before is None

    async def find(self, name: str, caller: Caller) -> Secret:
        """Raises SecretNotFound."""
        return secret_view(await self._found(name, caller))

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> SecretList:
        found = await self._secrets.list_values(of_tenant(caller.tenant_id))
        shown, more = _page(found, digest_of("secrets", caller.tenant_id), cursor, limit)
        return SecretList([secret_view(record) for record in shown], more)

    async def delete(self, name: str, caller: Caller) -> None:
        """Raises SecretNotFound."""
        record = await self._found(name, caller)
        await self._secrets.remove(stored_key(caller.tenant_id, name), None)
        log.info("secret deleted", action="secret.deleted", secret=name, by=caller.name)
        await self._record(caller, "secret.delete", name, record, None)

    async def _found(self, name: str, caller: Caller) -> SecretRecord:
        found = await _stored(self._secrets, name, caller)
        if found is None:
            listed = await self._secrets.list_values(of_tenant(caller.tenant_id))
            known = [record.name for record in listed]
            raise SecretNotFound(f"secret not found: {name[:64]}{nearest(name, known)}")
        return found

    async def _record(
        self,
        caller: Caller,
        action: str,
        name: str,
        before: SecretRecord | None,
        after: SecretRecord | None,
    ) -> None:
        await self._trail.record(
            caller, action, ChangeTarget("secret", name), _masked(before), _masked(after)
        )


def _masked(record: SecretRecord | None) -> dict[str, Any] | None:
    return None if record is None else {"value": MASK, "updated_at": record.updated_at}


class ManageVariables:
    def __init__(self, variables: ListedStore[VariableRecord], clock: Clock, trail: AuditTrail) -> None:
        self._variables = variables
        self._clock = clock
        self._trail = trail

    async def put(self, name: str, value: Any, caller: Caller) -> tuple[Variable, bool]:
        """The variable, and whether it is new. Raises InvalidRequest."""
        check_name(name)
        tenant, now = caller.tenant_id, self._clock()
        before: VariableRecord | None = None

        def changed(known: VariableRecord | None) -> VariableRecord:
            nonlocal before
            before = known
            created = now if known is None else known.created_at
            return VariableRecord(
                name=name, value=value, created_at=created, updated_at=now, tenant_id=tenant
            )

        written = await change_value(self._variables, stored_key(tenant, name), changed)
        assert written is not None  # noqa: S101 - `changed` always changes it
        log.info("variable set", action="variable.set", variable=name, by=caller.name)
        await self._record(caller, "variable.put", name, before, written)
        return variable_view(written), before is None

    async def find(self, name: str, caller: Caller) -> Variable:
        """Raises VariableNotFound."""
        return variable_view(await self._found(name, caller))

    async def page(self, cursor: str | None, limit: int, caller: Caller) -> VariableList:
        found = await self._variables.list_values(of_tenant(caller.tenant_id))
        shown, more = _page(found, digest_of("variables", caller.tenant_id), cursor, limit)
        return VariableList([variable_view(record) for record in shown], more)

    async def delete(self, name: str, caller: Caller) -> None:
        """Raises VariableNotFound."""
        record = await self._found(name, caller)
        await self._variables.remove(stored_key(caller.tenant_id, name), None)
        log.info("variable deleted", action="variable.deleted", variable=name, by=caller.name)
        await self._record(caller, "variable.delete", name, record, None)

    async def _found(self, name: str, caller: Caller) -> VariableRecord:
        found = await _stored(self._variables, name, caller)
        if found is None:
            listed = await self._variables.list_values(of_tenant(caller.tenant_id))
            known = [record.name for record in listed]
            raise VariableNotFound(f"variable not found: {name[:64]}{nearest(name, known)}")
        return found

    async def _record(
        self,
        caller: Caller,
        action: str,
        name: str,
        before: VariableRecord | None,
        after: VariableRecord | None,
    ) -> None:
        states = [None if one is None else {"value": one.value} for one in (before, after)]
        await self._trail.record(caller, action, ChangeTarget("variable", name), *states)


T = TypeVar("T", bound=Struct)


async def _stored(store: ListedStore[T], name: str, caller: Caller) -> T | None:
    """What arrives from outside is no key until it is a name."""
    found = await store.get(stored_key(caller.tenant_id, name)) if is_tag(name) else None
    return None if found is None else found.value


# Rotation of keys


class Resealed(Struct, frozen=True, kw_only=True):
    resealed: int
    """Secrets that an older key had sealed."""
    current: int
    """Secrets that the first key had sealed already."""
    unreadable: list[str]
    """Secrets that no key opens, as `tenant/name`."""


class ResealSecrets:
    """Seal everything that an older key has sealed with the first one. May be repeated and interrupted."""

    def __init__(self, secrets: ListedStore[SecretRecord], seal: Seal, trail: AuditTrail) -> None:
        self._secrets = secrets
        self._seal = seal
        self._trail = trail

    async def __call__(self, caller: Caller) -> Resealed:
        """Raises SecretsKeyMissing."""
        if not self._seal.has_key:
            raise SecretsKeyMissing
        resealed = current = 0
        unreadable: list[str] = []
        for record in await self._secrets.list_values():
            try:
                is_changed = await self._reseal(record.key)
            except WrongKey:
                unreadable.append(f"{record.tenant_id or '-'}/{record.name}")
                continue
            resealed, current = resealed + is_changed, current + (not is_changed)
        found = Resealed(resealed=resealed, current=current, unreadable=sorted(unreadable))
        after = {"resealed": resealed, "current": current, "unreadable": len(unreadable)}
        await self._trail.record(caller, "secret.reseal", ChangeTarget("secret", "*"), None, after)
        return found

    async def _reseal(self, key: str) -> bool:
        """Whether it was sealed with an older key. Somebody may set or delete it meanwhile."""
        while (found := await self._secrets.get(key)) is not None:
            record, bound = found.value, bound_to(found.value.tenant_id, found.value.name)
            if self._seal.is_current(record.sealed, bound):
                return False
            sealed = self._seal.seal(self._seal.open(record.sealed, bound), bound)
            try:
                await self._secrets.update(key, replace(record, sealed=sealed), found.revision)
            except WrongRevision:
                continue
            return True
        return False
