"""Define channels; seal, open and resolve what is confidential in them."""

from collections.abc import Callable

import msgspec

from pyoco_server.domain.alerts.channels import (
    Channel,
    ChannelDefinition,
    ChannelPage,
    ChannelView,
    Confidential,
    channel_key,
    channel_view,
    checked,
    closed,
    confidential_of,
    decode_confidential,
    host_of,
    is_generated,
    keeps_confidential,
    new_channel,
    opened,
    secret_of,
    texts_of,
    with_texts,
)
from pyoco_server.domain.alerts.model import Alert, AlertRecord
from pyoco_server.domain.secrets.masking import Masks
from pyoco_server.domain.secrets.model import KEY_SETTING
from pyoco_server.errors import ChannelInUse, ChannelNotFound, InvalidRequest, TargetRefused, Unresolvable
from pyoco_server.logs import get_logger
from pyoco_server.usecases.alerts.follow import FollowAlerts
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.named import NamedDefinitions, NounOf
from pyoco_server.usecases.ports.alerts import Outbound
from pyoco_server.usecases.ports.secrets import Seal, WrongKey
from pyoco_server.usecases.ports.stores import Clock, Store
from pyoco_server.usecases.secrets.resolve import ResolveTexts

log = get_logger(__name__)

CHANNELS = NounOf(
    noun="channel",
    record=Channel,
    key=channel_key,
    view=channel_view,
    page=ChannelPage,
    not_found=ChannelNotFound,
)


class SealChannels:
    """With a key, what is confidential is stored sealed. Without one it is stored as it is."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def close(self, channel: Channel) -> Channel:
        found = confidential_of(channel)
        if not self._seal.has_key or found == Confidential():
            return channel
        return closed(channel, self._seal.seal(msgspec.json.encode(found).decode(), channel.bound_to))

    def open(self, channel: Channel) -> Channel:
        """Raises Unresolvable."""
        if channel.sealed is None:
            return channel
        if not self._seal.has_key:
            raise Unresolvable(f"channel {channel.name!r} cannot be opened: {KEY_SETTING} is not set here")
        try:
            return self._opened(channel, channel.sealed)
        except WrongKey:
            # Not chained: nothing of the value or the key belongs into a log.
            raise Unresolvable(
                f"channel {channel.name!r} cannot be opened with the keys of {KEY_SETTING}"
            ) from None

    def again(self, channel: Channel) -> Channel:
        """Sealed with the first key; the same object if it is. Raises WrongKey."""
        if channel.sealed is None:
            return self.close(channel)
        if self._seal.is_current(channel.sealed, channel.bound_to):
            return channel
        return self.close(self._opened(channel, channel.sealed))

    def _opened(self, channel: Channel, sealed: str) -> Channel:
        return opened(channel, decode_confidential(self._seal.open(sealed, channel.bound_to).encode()))


class ReadyChannels:
    """Channels as messages are sent over them: opened, with values in place of references, checked."""

    def __init__(self, seal: SealChannels, resolve: ResolveTexts) -> None:
        self._seal = seal
        self._resolve = resolve

    async def __call__(self, channel: Channel, *, allow_private: bool) -> tuple[Channel, Masks]:
        """And what may be in no error or log. Raises Unresolvable, InvalidRequest or TargetRefused."""
        plain = self._seal.open(channel)
        texts, secrets = await self._resolve(channel.tenant_id, texts_of(plain))
        masks = Masks(secrets)
        try:
            return checked(with_texts(plain, texts), allow_private=allow_private), masks
        except (InvalidRequest, TargetRefused) as error:
            raise type(error)(masks.text(error.detail)) from None


class ManageChannels(NamedDefinitions[Channel, ChannelView, ChannelPage]):
    def __init__(  # noqa: PLR0913 - the composition root names each
        self,
        *,
        definitions: Store[AlertRecord],
        followed: FollowAlerts,
        seal: SealChannels,
        ready: ReadyChannels,
        outbound: Outbound,
        allow_private: bool,
        clock: Clock,
        new_secret: Callable[[], bytes],
        trail: AuditTrail,
    ) -> None:
        super().__init__(CHANNELS, definitions, followed.listed_channels, trail, followed.wrote)
        self._followed = followed
        self._seal = seal
        self._ready = ready
        self._outbound = outbound
        self._allow_private = allow_private
        self._clock = clock
        self._new_secret = new_secret

    async def put(self, name: str, wanted: ChannelDefinition, caller: Caller) -> tuple[ChannelView, bool]:
        """The channel, with a secret that was generated, and whether it is new.

        Raises InvalidRequest, TargetRefused or Unresolvable.
        """
        secret = secret_of(self._new_secret())

        async def decide(known: Channel | None) -> Channel:
            channel = new_channel(
                name,
                wanted,
                tenant_id=caller.tenant_id,
                known=None if known is None else self._known(wanted, known),
                new_secret=secret,
                now=self._clock(),
            )
            await self._check(channel)
            return self._seal.close(channel)

        before, after = await self._write(name, decide, caller)
        log.info("channel defined", action="channel.defined", channel=name, by=caller.name)
        is_shown = is_generated(wanted, before)
        shown = channel_view(self._seal.open(after) if is_shown else after, with_secret=is_shown)
        return shown, before is None

    def _known(self, wanted: ChannelDefinition, known: Channel) -> Channel:
        """One that cannot be opened can be replaced by one that keeps nothing of it."""
        return self._seal.open(known) if keeps_confidential(wanted, known) else known

    async def _check(self, channel: Channel) -> None:
        ready, masks = await self._ready(channel, allow_private=self._allow_private)
        if self._allow_private:
            return
        try:
            await self._outbound.check_host(*host_of(ready))
        except TargetRefused as error:
            raise TargetRefused(masks.text(error.detail)) from None

    async def delete(self, name: str, caller: Caller) -> None:
        """Raises ChannelNotFound or ChannelInUse."""
        await self._followed.wait()
        await self._stored(name, caller)
        await self._require_unused(name, caller)
        await self._remove(name, caller)
        log.info("channel deleted", action="channel.deleted", channel=name, by=caller.name)

    async def _require_unused(self, name: str, caller: Caller) -> None:
        """The feed may be behind, so what it contains is read again."""
        for alert in self._followed.alerts(caller.tenant_id):
            if alert.definition.channel != name:
                continue
            stored = await self._store.get(alert.store_key)
            if stored is not None and isinstance(stored.value, Alert) and _uses(stored.value, name):
                raise ChannelInUse(f"channel {name!r} is used by alert {alert.name!r}")


def _uses(alert: Alert, channel: str) -> bool:
    return alert.definition.channel == channel
