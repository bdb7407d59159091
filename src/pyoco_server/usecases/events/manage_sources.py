"""Sources of signed events, of each tenant."""

from msgspec.structs import replace

from pyoco_server.domain.events.audit import iso
from pyoco_server.domain.events.signatures import Source, check_source
from pyoco_server.domain.events.templates import is_id
from pyoco_server.errors import WorkflowNotFound
from pyoco_server.usecases.change_value import change_value
from pyoco_server.usecases.events.keys import place
from pyoco_server.usecases.events.ports import ListedStore
from pyoco_server.usecases.ports import Clock

NOT_FOUND = "Workflow source not found."


class ManageSources:
    """Older versions stored a source under its id alone. Such a source stays there, and its tenant's.

    Its sender knows an address without a tenant: that one means it first.
    """

    def __init__(self, sources: ListedStore[Source], clock: Clock) -> None:
        self._sources = sources
        self._clock = clock

    async def list_sources(self, tenant_id: str | None) -> list[Source]:
        sources = await self._sources.list_values()
        return sorted((one for one in sources if one.tenant_id == tenant_id), key=lambda one: one.id)

    async def known(self, source_id: str, tenant_id: str, default_tenant: str | None) -> Source | None:
        """The source that a sender names; without a `tenant_id` it is one of the default tenant."""
        if tenant_id:
            return await self._of(tenant_id, source_id)
        old = await self._get(source_id, source_id)
        return old or await self._get(place(default_tenant, source_id), source_id)

    async def find(self, tenant_id: str | None, source_id: str) -> Source:
        found = await self._of(tenant_id, source_id)
        if found is None:
            raise WorkflowNotFound(NOT_FOUND)
        return found

    async def put(self, source: Source) -> Source:
        written = replace(check_source(source), updated_at=iso(self._clock()))
        key = await self._key(source.tenant_id, source.id)
        await change_value(self._sources, key, lambda _: written)
        return written

    async def delete(self, tenant_id: str | None, source_id: str) -> None:
        await self.find(tenant_id, source_id)
        await self._sources.remove(await self._key(tenant_id, source_id), None)

    async def _key(self, tenant_id: str | None, source_id: str) -> str:
        old = await self._get(source_id, source_id)
        is_ours = old is not None and old.tenant_id == tenant_id
        return source_id if is_ours else place(tenant_id, source_id)

    async def _of(self, tenant_id: str | None, source_id: str) -> Source | None:
        if tenant_id is not None and not is_id(tenant_id):
            return None
        old = await self._get(source_id, source_id)
        if old is not None and old.tenant_id == tenant_id:
            return old
        return await self._get(place(tenant_id, source_id), source_id)

    async def _get(self, key: str, source_id: str) -> Source | None:
        stored = await self._sources.get(key) if is_id(source_id) else None
        return None if stored is None else stored.value
