"""The limits and pauses that are defined now, in memory."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from pyoco_server.domain.limits.model import FlowPause, Limit, LimitRecord, pause_key, rules_of
from pyoco_server.usecases.ports.stores import Versioned


class LimitDefinitions:
    """Limits by tenant, and paused flows."""

    def __init__(self) -> None:
        self._limits: dict[str | None, dict[str, Versioned[Limit]]] = defaultdict(dict)
        self._pauses: dict[str, FlowPause] = {}
        self._revisions: dict[str, int] = {}
        """Of the newest definition or removal, by key. The answer to a write may be older than the feed."""
        self._rules: dict[str | None, str] = {}
        self._rules_read: dict[str | None, str] = {}
        """By which the active runs of a tenant were read."""

    @property
    def is_empty(self) -> bool:
        return not self._rules and not self._pauses

    def limits(self, tenant_id: str | None) -> dict[str, Versioned[Limit]]:
        return self._limits.get(tenant_id) or {}

    def names_for(self, tenant_id: str | None, flow: str, tags: Collection[str]) -> tuple[str, ...]:
        """Limits that concern runs of the flow."""
        found = self.limits(tenant_id).values()
        concerned = [one.value for one in found if one.value.definition.match.concerns(flow, tags, tenant_id)]
        return tuple(sorted(limit.name for limit in concerned))

    def rules(self, tenant_id: str | None) -> str:
        return self._rules.get(tenant_id, "")

    def unread(self) -> dict[str | None, str]:
        """Tenants whose active runs have to be read, because their rules are others now; and these rules."""
        return {one: self.rules(one) for one in {*self._rules, *self._rules_read} if not self.is_read(one)}

    def have_read(self, tenants: Mapping[str | None, str]) -> None:
        self._rules_read.update(tenants)

    def is_read(self, tenant_id: str | None) -> bool:
        return self._rules_read.get(tenant_id, "") == self.rules(tenant_id)

    def pause(self, tenant_id: str | None, flow: str, now: float) -> FlowPause | None:
        found = self._pauses.get(pause_key(tenant_id, flow)) if self._pauses else None
        return None if found is None or found.is_over(now) else found

    def note(self, key: str, found: Versioned[LimitRecord]) -> bool:
        """Whether it is news."""
        record = found.value
        if found.revision <= self._revisions.get(key, 0):
            return False
        self._revisions[key] = found.revision
        if isinstance(record, FlowPause):
            self._pauses[key] = record
        else:
            self._limits[record.tenant_id][record.name] = Versioned(record, found.revision)
            self._write_rules(record.tenant_id)
        return True

    def forget(self, key: str, revision: int | None) -> LimitRecord | None:
        """What was removed, unless it was defined again since `revision`. None: the feed begins again."""
        if revision is None:
            self._revisions.pop(key, None)
        elif revision <= self._revisions.get(key, 0):
            return None
        else:
            self._revisions[key] = revision
        return self._pauses.pop(key, None) or self._forget_limit(key)

    def _forget_limit(self, key: str) -> Limit | None:
        for of_tenant in self._limits.values():
            for name, limit in of_tenant.items():
                if limit.value.store_key == key:
                    del of_tenant[name]
                    self._write_rules(limit.value.tenant_id)
                    return limit.value
        return None

    def all_keys(self) -> list[str]:
        """Also of what was removed."""
        return [*self._revisions]

    def _write_rules(self, tenant_id: str | None) -> None:
        rules = rules_of(limit.value for limit in self._limits[tenant_id].values())
        if rules:
            self._rules[tenant_id] = rules
        else:
            self._rules.pop(tenant_id, None)
