"""Actions: the list of what templates may do."""

from msgspec.structs import replace

from pyoco_server.domain.events.audit import iso
from pyoco_server.domain.events.templates import Action, check_action, is_action_key
from pyoco_server.errors import UnsupportedAction, WorkflowNotFound
from pyoco_server.usecases.change_value import change_value
from pyoco_server.usecases.events.keys import of_tenant, place
from pyoco_server.usecases.events.ports import ListedStore
from pyoco_server.usecases.ports import Clock

NOT_FOUND = "Workflow action not found."


class ManageActions:
    def __init__(self, actions: ListedStore[Action], clock: Clock) -> None:
        self._actions = actions
        self._clock = clock

    async def list_actions(self, tenant_id: str | None) -> list[Action]:
        return sorted(await self._actions.list_values(of_tenant(tenant_id)), key=lambda one: one.key)

    async def find(self, tenant_id: str | None, key: str) -> Action:
        found = await self._get(tenant_id, key)
        if found is None:
            raise WorkflowNotFound(NOT_FOUND)
        return found

    async def executable(self, tenant_id: str | None, key: str) -> Action:
        """Raises UnsupportedAction."""
        found = await self._get(tenant_id, key)
        if found is None:
            raise UnsupportedAction(key)
        return found

    async def put(self, action: Action) -> Action:
        written = replace(check_action(action), updated_at=iso(self._clock()))
        await change_value(self._actions, place(action.tenant_id, action.key), lambda _: written)
        return written

    async def delete(self, tenant_id: str | None, key: str) -> None:
        await self.find(tenant_id, key)
        await self._actions.remove(place(tenant_id, key), None)

    async def _get(self, tenant_id: str | None, key: str) -> Action | None:
        stored = await self._actions.get(place(tenant_id, key)) if is_action_key(key) else None
        return None if stored is None else stored.value
