"""Rotation of keys: seal secrets and channels with the first key."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pyoco_server.domain.alerts.channels import Channel
from pyoco_server.domain.audit_trail import ChangeTarget
from pyoco_server.domain.named import stored_key
from pyoco_server.domain.secrets.model import SecretRecord, bound_to
from pyoco_server.errors import SecretsKeyMissing
from pyoco_server.usecases.alerts.channels import SealChannels
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.ports.gateway import ListedStore
from pyoco_server.usecases.ports.secrets import Seal, WrongKey
from pyoco_server.usecases.ports.stores import Store, WrongRevision


class Resealed(Struct, frozen=True, kw_only=True):
    resealed: int
    """Secrets and channels that an older key had sealed, or none."""
    current: int
    """Those that the first key had sealed already."""
    unreadable: list[str]
    """Those that no key opens: `tenant/name` of a secret, `tenant/channels/name` of a channel."""


class _Place(Struct, frozen=True):
    shown: str
    key: str
    store: Store[Any]
    sealed_again: Callable[[Any], Any]
    """The same record if there is nothing to do. Raises WrongKey."""


class ResealSecrets:
    """May be repeated and interrupted."""

    def __init__(
        self,
        secrets: ListedStore[SecretRecord],
        channels: ListedStore[Channel],
        seal: Seal,
        trail: AuditTrail,
    ) -> None:
        self._secrets = secrets
        self._channels = channels
        self._seal = seal
        self._seal_channels = SealChannels(seal)
        self._trail = trail

    async def __call__(self, caller: Caller) -> Resealed:
        """Raises SecretsKeyMissing."""
        if not self._seal.has_key:
            raise SecretsKeyMissing
        resealed = current = 0
        unreadable: list[str] = []
        async for place in self._places():
            try:
                is_changed = await _reseal(place)
            except WrongKey:
                unreadable.append(place.shown)
                continue
            resealed, current = resealed + is_changed, current + (not is_changed)
        found = Resealed(resealed=resealed, current=current, unreadable=sorted(unreadable))
        after = {"resealed": resealed, "current": current, "unreadable": len(unreadable)}
        await self._trail.record(caller, "secret.reseal", ChangeTarget("secret", "*"), None, after)
        return found

    async def _places(self) -> AsyncIterator[_Place]:
        """Secrets first: an administrator's NATS user may have no rights to channels."""
        for secret in await self._secrets.list_values():
            shown = f"{secret.tenant_id or '-'}/{secret.name}"
            yield _Place(shown, secret.key, self._secrets, self._secret)
        for channel in await self._channels.list_values():
            shown = f"{channel.tenant_id or '-'}/channels/{channel.name}"
            key = stored_key(channel.tenant_id, channel.name)
            yield _Place(shown, key, self._channels, self._seal_channels.again)

    def _secret(self, record: SecretRecord) -> SecretRecord:
        bound = bound_to(record.tenant_id, record.name)
        if self._seal.is_current(record.sealed, bound):
            return record
        return replace(record, sealed=self._seal.seal(self._seal.open(record.sealed, bound), bound))


async def _reseal(place: _Place) -> bool:
    """Whether it was written. Somebody may set or delete it meanwhile."""
    while (found := await place.store.get(place.key)) is not None:
        after = place.sealed_again(found.value)
        if after is found.value:
            return False
        try:
            await place.store.update(place.key, after, found.revision)
        except WrongRevision:
            continue
        return True
    return False
