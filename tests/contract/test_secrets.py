"""Secrets and variables in their store, and sealed with another key: in memory and on JetStream."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from pyoco_server.domain.alerts.channels import Channel, ChannelType
from pyoco_server.domain.alerts.model import decode_alert_record
from pyoco_server.domain.named import of_tenant, stored_key
from pyoco_server.domain.secrets.model import SecretRecord, VariableRecord, bound_to
from pyoco_server.errors import Unresolvable
from pyoco_server.memory import open_memory_gateway_backend
from pyoco_server.memory.stores import MemoryListedStore
from pyoco_server.sealing import Sealer
from pyoco_server.usecases.alerts.channels import SealChannels
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.ports.secrets import WrongKey
from pyoco_server.usecases.ports.stores import WrongRevision
from pyoco_server.usecases.reseal import ResealSecrets
from pyoco_server.wiring import new_run_id, open_backend, open_gateway_backend
from pyoco_server.wiring.gateway_backend import channel_store
from support.builders import NOW
from support.nats_server import delete_streams_of, unique_config

OLD, NEW, OTHER = (letter * 32 for letter in (b"o", b"n", b"x"))


class Stores:
    def __init__(self, backend: Any, channels: Any) -> None:
        self.secrets, self.variables = backend.secrets, backend.variables
        self.change_log, self.channels = backend.change_log, channels


@pytest.fixture(params=["memory", "jetstream"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    if request.param == "memory":
        async with open_memory_gateway_backend() as memory:
            yield Stores(memory, MemoryListedStore(decode_alert_record))
        return
    config = unique_config(request.getfixturevalue("nats_server").url)
    async with open_gateway_backend(config) as found, open_backend(config, "test") as admin:
        yield Stores(found, channel_store(admin.connection, config))
    await delete_streams_of(config)


def secret(name: str, tenant_id: str | None = None, key: bytes = OLD) -> SecretRecord:
    sealed = Sealer([key]).seal(f"value of {name}", bound_to(tenant_id, name))
    return SecretRecord(name=name, sealed=sealed, created_at=NOW, updated_at=NOW, tenant_id=tenant_id)


async def test_secrets_and_variables_are_kept_apart_and_by_tenant(backend: Stores) -> None:
    for record in (secret("a"), secret("b"), secret("a", "acme")):
        await backend.secrets.create(record.key, record)
    variable = VariableRecord(name="a", value=[1, {"x": None}], created_at=NOW, updated_at=NOW)
    await backend.variables.create(variable.key, variable)
    ours = [one.name for one in await backend.secrets.list_values(of_tenant(None))]
    assert sorted(ours) == ["a", "b"]
    assert [one.tenant_id for one in await backend.secrets.list_values(of_tenant("acme"))] == ["acme"]
    assert await backend.variables.list_values() == [variable]
    found = await backend.secrets.get(secret("a").key)
    with pytest.raises(WrongRevision):
        await backend.secrets.create(secret("a").key, secret("a"))
    await backend.secrets.update(secret("a").key, secret("a"), found.revision)
    with pytest.raises(WrongRevision):
        await backend.secrets.update(secret("a").key, secret("a"), found.revision)
    await backend.secrets.remove(secret("a").key, None)
    assert await backend.secrets.get(secret("a").key) is None
    assert [one.name for one in await backend.secrets.list_values(of_tenant(None))] == ["b"]


async def test_resealing_needs_the_old_key_once_and_can_be_repeated(backend: Stores) -> None:
    for record in (secret("a"), secret("b", "acme"), secret("c", key=NEW), secret("lost", key=OTHER)):
        await backend.secrets.create(record.key, record)
    trail = AuditTrail(backend.change_log, lambda: NOW, new_run_id)
    reseal = ResealSecrets(backend.secrets, backend.channels, Sealer([NEW, OLD]), trail)
    first, second = await reseal(Caller()), await reseal(Caller())
    assert (first.resealed, first.current, first.unreadable) == (2, 1, ["-/lost"])
    assert (second.resealed, second.current) == (0, 3)
    for name, tenant in (("a", None), ("b", "acme"), ("c", None)):
        found = await backend.secrets.get(secret(name, tenant).key)
        assert Sealer([NEW]).open(found.value.sealed, bound_to(tenant, name)) == f"value of {name}"
        with pytest.raises(WrongKey):
            Sealer([NEW]).open(found.value.sealed, bound_to("other", name))
        with pytest.raises(WrongKey):
            Sealer([OLD]).open(found.value.sealed, bound_to(tenant, name))


def channel(name: str, tenant_id: str | None = None) -> Channel:
    return Channel(
        name=name,
        tenant_id=tenant_id,
        type=ChannelType.SLACK,
        created_at=NOW,
        updated_at=NOW,
        url=f"https://example.com/{name}",
    )


async def test_channels_are_sealed_with_the_first_key_also_those_of_before(backend: Stores) -> None:
    plain, older, current, lost = channel("plain"), channel("older", "acme"), channel("now"), channel("lost")
    stored = [
        plain,
        SealChannels(Sealer([OLD])).close(older),
        SealChannels(Sealer([NEW])).close(current),
        SealChannels(Sealer([OTHER])).close(lost),
    ]
    for one in stored:
        await backend.channels.create(stored_key(one.tenant_id, one.name), one)
    trail = AuditTrail(backend.change_log, lambda: NOW, new_run_id)
    reseal = ResealSecrets(backend.secrets, backend.channels, Sealer([NEW, OLD]), trail)
    first, second = await reseal(Caller()), await reseal(Caller())
    assert (first.resealed, first.current, first.unreadable) == (2, 1, ["-/channels/lost"])
    assert (second.resealed, second.current) == (0, 3)
    for one in (plain, older, current):
        found = await backend.channels.get(stored_key(one.tenant_id, one.name))
        assert found.value.url is None
        assert SealChannels(Sealer([NEW])).open(found.value) == one
        # Bound to its name: what was sealed for another channel does not open.
        moved = replace(found.value, name="another")
        with pytest.raises(Unresolvable):
            SealChannels(Sealer([NEW])).open(moved)
