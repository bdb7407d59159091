"""Templates: read, write without losing anybody's change, and remove."""

from msgspec.structs import replace

from pyoco_server.domain.events.templates import (
    Template,
    check_template,
    is_id,
    later_than,
    require_started_by_events,
    the_one_for,
)
from pyoco_server.errors import WorkflowConflict, WorkflowNotFound
from pyoco_server.usecases.change_value import change_value
from pyoco_server.usecases.events.keys import of_tenant, place
from pyoco_server.usecases.events.ports import ListedStore
from pyoco_server.usecases.ports import Clock

LOST_RACE = "the template was changed by somebody else; read it again"


class ManageTemplates:
    def __init__(self, templates: ListedStore[Template], clock: Clock) -> None:
        self._templates = templates
        self._clock = clock

    async def list_templates(self, tenant_id: str | None) -> list[Template]:
        return sorted(await self._templates.list_values(of_tenant(tenant_id)), key=lambda one: one.id)

    async def find(self, tenant_id: str | None, template_id: str) -> Template:
        stored = await self._templates.get(place(tenant_id, template_id)) if is_id(template_id) else None
        if stored is None:
            raise WorkflowNotFound("Workflow template not found.")
        return stored.value

    async def put(self, template: Template, if_match: str | None) -> Template:
        """With `if_match`, only over the template with that updated_at. Raises WorkflowConflict."""
        check_template(template)

        def decide(current: Template | None) -> Template:
            _check_match(current, if_match)
            return replace(template, updated_at=_next_time(self._clock(), current))

        written = await change_value(self._templates, place(template.tenant_id, template.id), decide)
        assert written is not None  # noqa: S101 - `decide` always decides
        return written

    async def delete(self, tenant_id: str | None, template_id: str, if_match: str | None) -> None:
        key = place(tenant_id, template_id)
        stored = await self._templates.get(key) if is_id(template_id) else None
        if stored is None:
            raise WorkflowNotFound("Workflow template not found.")
        _check_match(stored.value, if_match)
        await self._templates.remove(key, stored.revision if if_match else None)

    async def resolve(
        self, tenant_id: str | None, template_id: str | None, event_name: str | None
    ) -> Template:
        """The template that an event means. Raises WorkflowNotFound or WorkflowConflict."""
        if template_id is not None:
            return require_started_by_events(await self.find(tenant_id, template_id))
        return the_one_for(event_name, await self._templates.list_values(of_tenant(tenant_id)))


def _check_match(current: Template | None, if_match: str | None) -> None:
    if if_match is None or if_match == "*":
        return
    if current is None or current.updated_at != if_match:
        raise WorkflowConflict(LOST_RACE)


def _next_time(now: float, current: Template | None) -> str:
    """Later than the template's before, so that who read that one can be told from who read this one."""
    return later_than(None if current is None else current.updated_at, now)
