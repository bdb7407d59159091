"""Manage templates, actions and sources: what events may start, and who may sign them."""

from typing import Any

from msgspec.structs import asdict, replace

from pyoco_server.domain.audit_trail import MASK, ChangeTarget
from pyoco_server.domain.events.audit import iso
from pyoco_server.domain.events.filters import check_when
from pyoco_server.domain.events.sources import Source, check_source
from pyoco_server.domain.events.templates import (
    Action,
    Template,
    check_action,
    check_template,
    is_action_key,
    is_id,
    later_than,
    require_started_by_events,
    started_by,
)
from pyoco_server.errors import UnsupportedAction, WorkflowConflict, WorkflowNotFound
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.consistency import change_value, replace_value
from pyoco_server.usecases.ports.gateway import ListedStore
from pyoco_server.usecases.ports.stores import Clock

NO_TENANT = "="
"""Stands for no tenant, when auth is off. Not a valid tenant name."""
DRAIN_LEASE = "drain"
NOTIFY_LEASE = "notify"
LEASE_SEC = 30.0
"""Lease timeout; the holder renews it with every job."""


def of_tenant(tenant_id: str | None) -> str:
    """Key prefix of a tenant."""
    return f"{tenant_id or NO_TENANT}."


def tenant_key(tenant_id: str | None, name: str) -> str:
    return of_tenant(tenant_id) + name


def _state(definition: Action | Source | Template | None) -> dict[str, Any] | None:
    """For the audit trail; without secrets."""
    if definition is None:
        return None
    state = asdict(definition)
    if isinstance(definition, Source):
        state["secrets"] = [MASK] * len(definition.secrets)
    del state["tenant_id"], state["updated_at"]
    return state


# Actions

ACTION_NOT_FOUND = "Workflow action not found."


class ManageActions:
    def __init__(self, actions: ListedStore[Action], clock: Clock, trail: AuditTrail) -> None:
        self._actions = actions
        self._clock = clock
        self._trail = trail

    async def list_actions(self, tenant_id: str | None) -> list[Action]:
        return sorted(await self._actions.list_values(of_tenant(tenant_id)), key=lambda one: one.key)

    async def find(self, tenant_id: str | None, key: str) -> Action:
        found = await self._get(tenant_id, key)
        if found is None:
            raise WorkflowNotFound(ACTION_NOT_FOUND)
        return found

    async def executable(self, tenant_id: str | None, key: str) -> Action:
        """Raises UnsupportedAction."""
        found = await self._get(tenant_id, key)
        if found is None:
            raise UnsupportedAction(key)
        return found

    async def put(self, action: Action, caller: Caller) -> Action:
        written = replace(check_action(action), updated_at=iso(self._clock()))
        before = await replace_value(self._actions, tenant_key(action.tenant_id, action.key), written)
        target = ChangeTarget("action", action.key)
        await self._trail.record(caller, "action.put", target, _state(before), _state(written))
        return written

    async def delete(self, key: str, caller: Caller) -> None:
        before = await self.find(caller.tenant_id, key)
        await self._actions.remove(tenant_key(caller.tenant_id, key), None)
        await self._trail.record(caller, "action.delete", ChangeTarget("action", key), _state(before), None)

    async def _get(self, tenant_id: str | None, key: str) -> Action | None:
        stored = await self._actions.get(tenant_key(tenant_id, key)) if is_action_key(key) else None
        return None if stored is None else stored.value


# Sources

SOURCE_NOT_FOUND = "Workflow source not found."


class ManageSources:
    """Sources of older versions are stored under their id alone and stay there.

    Their senders use a URL without a tenant; such a URL refers to them first.
    """

    def __init__(self, sources: ListedStore[Source], clock: Clock, trail: AuditTrail) -> None:
        self._sources = sources
        self._clock = clock
        self._trail = trail

    async def list_sources(self, tenant_id: str | None) -> list[Source]:
        sources = await self._sources.list_values()
        return sorted((one for one in sources if one.tenant_id == tenant_id), key=lambda one: one.id)

    async def known(self, source_id: str, tenant_id: str, default_tenant: str | None) -> Source | None:
        """The source named by a sender; without a `tenant_id`, one of the default tenant."""
        if tenant_id:
            return await self._of(tenant_id, source_id)
        old = await self._get(source_id, source_id)
        return old or await self._get(tenant_key(default_tenant, source_id), source_id)

    async def find(self, tenant_id: str | None, source_id: str) -> Source:
        found = await self._of(tenant_id, source_id)
        if found is None:
            raise WorkflowNotFound(SOURCE_NOT_FOUND)
        return found

    async def put(self, source: Source, caller: Caller) -> Source:
        written = replace(check_source(source), updated_at=iso(self._clock()))
        before = await replace_value(self._sources, await self._key(source.tenant_id, source.id), written)
        target = ChangeTarget("source", source.id)
        await self._trail.record(caller, "source.put", target, _state(before), _state(written))
        return written

    async def delete(self, source_id: str, caller: Caller) -> None:
        before = await self.find(caller.tenant_id, source_id)
        await self._sources.remove(await self._key(caller.tenant_id, source_id), None)
        target = ChangeTarget("source", source_id)
        await self._trail.record(caller, "source.delete", target, _state(before), None)

    async def _key(self, tenant_id: str | None, source_id: str) -> str:
        old = await self._get(source_id, source_id)
        is_ours = old is not None and old.tenant_id == tenant_id
        return source_id if is_ours else tenant_key(tenant_id, source_id)

    async def _of(self, tenant_id: str | None, source_id: str) -> Source | None:
        if tenant_id is not None and not is_id(tenant_id):
            return None
        old = await self._get(source_id, source_id)
        if old is not None and old.tenant_id == tenant_id:
            return old
        return await self._get(tenant_key(tenant_id, source_id), source_id)

    async def _get(self, key: str, source_id: str) -> Source | None:
        stored = await self._sources.get(key) if is_id(source_id) else None
        return None if stored is None else stored.value


# Templates

LOST_RACE = "the template has changed; read it again"


class ManageTemplates:
    def __init__(self, templates: ListedStore[Template], clock: Clock, trail: AuditTrail) -> None:
        self._templates = templates
        self._clock = clock
        self._trail = trail

    async def list_templates(self, tenant_id: str | None) -> list[Template]:
        return sorted(await self._templates.list_values(of_tenant(tenant_id)), key=lambda one: one.id)

    async def find(self, tenant_id: str | None, template_id: str) -> Template:
        stored = await self._templates.get(tenant_key(tenant_id, template_id)) if is_id(template_id) else None
        if stored is None:
            raise WorkflowNotFound("Workflow template not found.")
        return stored.value

    async def put(self, template: Template, if_match: str | None, caller: Caller) -> Template:
        """With `if_match`, only over the template with that updated_at. Raises WorkflowConflict."""
        check_template(template)
        check_when(template.when)
        before: Template | None = None

        def decide(current: Template | None) -> Template:
            nonlocal before
            _check_match(current, if_match)
            before = current
            return replace(template, updated_at=_next_time(self._clock(), current))

        written = await change_value(self._templates, tenant_key(template.tenant_id, template.id), decide)
        assert written is not None  # noqa: S101 - `decide` always decides
        target = ChangeTarget("template", template.id)
        await self._trail.record(caller, "template.put", target, _state(before), _state(written))
        return written

    async def delete(self, template_id: str, if_match: str | None, caller: Caller) -> None:
        key = tenant_key(caller.tenant_id, template_id)
        stored = await self._templates.get(key) if is_id(template_id) else None
        if stored is None:
            raise WorkflowNotFound("Workflow template not found.")
        _check_match(stored.value, if_match)
        await self._templates.remove(key, stored.revision if if_match else None)
        target = ChangeTarget("template", template_id)
        await self._trail.record(caller, "template.delete", target, _state(stored.value), None)

    async def candidates(
        self, tenant_id: str | None, template_id: str | None, event_name: str | None
    ) -> list[Template]:
        """The templates for an event, before their filters. Raises WorkflowNotFound or WorkflowConflict."""
        if template_id is not None:
            return [require_started_by_events(await self.find(tenant_id, template_id))]
        return started_by(event_name, await self._templates.list_values(of_tenant(tenant_id)))


def _check_match(current: Template | None, if_match: str | None) -> None:
    if if_match is None or if_match == "*":
        return
    if current is None or current.updated_at != if_match:
        raise WorkflowConflict(LOST_RACE)


def _next_time(now: float, current: Template | None) -> str:
    """Later than the previous updated_at: each version has its own, for `If-Match`."""
    return later_than(None if current is None else current.updated_at, now)
