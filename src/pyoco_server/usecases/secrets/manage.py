"""Set, list and delete secrets and variables."""

from typing import Any

from pyoco_server.domain.named import check_name, of_tenant, stored_key
from pyoco_server.domain.secrets.masking import MASK
from pyoco_server.domain.secrets.model import (
    Secret,
    SecretList,
    SecretRecord,
    Variable,
    VariableList,
    VariableRecord,
    bound_to,
    secret_view,
    variable_view,
)
from pyoco_server.errors import SecretNotFound, SecretsKeyMissing, VariableNotFound
from pyoco_server.logs import get_logger
from pyoco_server.usecases.audit_trail import AuditTrail
from pyoco_server.usecases.auth import Caller
from pyoco_server.usecases.named import NamedDefinitions, NounOf
from pyoco_server.usecases.ports.gateway import ListedStore
from pyoco_server.usecases.ports.secrets import Seal
from pyoco_server.usecases.ports.stores import Clock

log = get_logger(__name__)

SECRETS = NounOf(
    noun="secret",
    record=SecretRecord,
    key=stored_key,
    view=secret_view,
    page=SecretList,
    not_found=SecretNotFound,
    audited=lambda record: {"value": MASK, "updated_at": record.updated_at},
)
VARIABLES = NounOf(
    noun="variable",
    record=VariableRecord,
    key=stored_key,
    view=variable_view,
    page=VariableList,
    not_found=VariableNotFound,
    audited=lambda record: {"value": record.value},
)


class ManageSecrets(NamedDefinitions[SecretRecord, Secret, SecretList]):
    def __init__(
        self, secrets: ListedStore[SecretRecord], seal: Seal, clock: Clock, trail: AuditTrail
    ) -> None:
        super().__init__(SECRETS, secrets, lambda tenant: secrets.list_values(of_tenant(tenant)), trail)
        self._seal = seal
        self._clock = clock

    async def put(self, name: str, value: str, caller: Caller) -> tuple[Secret, bool]:
        """The secret, and whether it is new. Raises InvalidRequest or SecretsKeyMissing."""
        check_name("name", name)
        if not self._seal.has_key:
            raise SecretsKeyMissing
        tenant, now = caller.tenant_id, self._clock()
        wanted = SecretRecord(
            name=name,
            sealed=self._seal.seal(value, bound_to(tenant, name)),
            created_at=now,
            updated_at=now,
            tenant_id=tenant,
        )
        before, after = await self._put(name, wanted, caller)
        log.info("secret set", action="secret.set", secret=name, by=caller.name)
        return secret_view(after), before is None

    async def delete(self, name: str, caller: Caller) -> None:
        """Raises SecretNotFound."""
        await self._remove(name, caller)
        log.info("secret deleted", action="secret.deleted", secret=name, by=caller.name)


class ManageVariables(NamedDefinitions[VariableRecord, Variable, VariableList]):
    def __init__(self, variables: ListedStore[VariableRecord], clock: Clock, trail: AuditTrail) -> None:
        super().__init__(VARIABLES, variables, lambda tenant: variables.list_values(of_tenant(tenant)), trail)
        self._clock = clock

    async def put(self, name: str, value: Any, caller: Caller) -> tuple[Variable, bool]:
        """The variable, and whether it is new. Raises InvalidRequest."""
        check_name("name", name)
        now = self._clock()
        wanted = VariableRecord(
            name=name, value=value, created_at=now, updated_at=now, tenant_id=caller.tenant_id
        )
        before, after = await self._put(name, wanted, caller)
        log.info("variable set", action="variable.set", variable=name, by=caller.name)
        return variable_view(after), before is None

    async def delete(self, name: str, caller: Caller) -> None:
        """Raises VariableNotFound."""
        await self._remove(name, caller)
        log.info("variable deleted", action="variable.deleted", variable=name, by=caller.name)
