"""Sources of signed events. Their ids are unique among all tenants: a sender has no other name to give."""

from msgspec.structs import replace

from pyoco_server.domain.events.audit import iso
from pyoco_server.domain.events.signatures import Source, check_source
from pyoco_server.domain.events.templates import is_id
from pyoco_server.errors import WorkflowConflict, WorkflowNotFound
from pyoco_server.usecases.change_value import change_value
from pyoco_server.usecases.events.ports import ListedStore
from pyoco_server.usecases.ports import Clock

NOT_FOUND = "Workflow source not found."


class ManageSources:
    def __init__(self, sources: ListedStore[Source], clock: Clock) -> None:
        self._sources = sources
        self._clock = clock

    async def list_sources(self, tenant_id: str | None) -> list[Source]:
        sources = await self._sources.list_values()
        return sorted((one for one in sources if one.tenant_id == tenant_id), key=lambda one: one.id)

    async def known(self, source_id: str) -> Source | None:
        stored = await self._sources.get(source_id) if is_id(source_id) else None
        return None if stored is None else stored.value

    async def find(self, tenant_id: str | None, source_id: str) -> Source:
        found = await self.known(source_id)
        if found is None or found.tenant_id != tenant_id:
            raise WorkflowNotFound(NOT_FOUND)
        return found

    async def put(self, source: Source) -> Source:
        written = replace(check_source(source), updated_at=iso(self._clock()))

        def decide(current: Source | None) -> Source:
            if current is not None and current.tenant_id != source.tenant_id:
                raise WorkflowConflict("this source id is taken")
            return written

        await change_value(self._sources, source.id, decide)
        return written

    async def delete(self, tenant_id: str | None, source_id: str) -> None:
        await self.find(tenant_id, source_id)
        await self._sources.remove(source_id, None)
