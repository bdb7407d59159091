"""Values of secrets and variables: on a worker just before a flow starts, and checked at submit."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import asdict, replace

from pyoco_server.domain.fleet import RESOLVES
from pyoco_server.domain.named import stored_key
from pyoco_server.domain.runs.jobs import Job, ResolvedJob, Submission
from pyoco_server.domain.secrets.model import KEY_SETTING, SecretRecord, bound_to
from pyoco_server.domain.secrets.references import Kind, Named, named_in, read, resolved
from pyoco_server.errors import Unresolvable
from pyoco_server.usecases.fleet import ListWorkers
from pyoco_server.usecases.ports.secrets import Seal, SecretStores, WrongKey


class ReadValues:
    def __init__(self, stores: SecretStores, seal: Seal) -> None:
        self._stores = stores
        self._seal = seal

    async def __call__(self, tenant_id: str | None, named: Iterable[Named]) -> dict[Named, Any]:
        """Raises Unresolvable with the name of the first that has no value."""
        return {one: await self._value(tenant_id, one) for one in named}

    async def check(self, tenant_id: str | None, named: Iterable[Named]) -> None:
        """Like a call, without a key: then only a worker can know. Raises Unresolvable."""
        for one in named:
            if one.kind is Kind.SECRET and not self._seal.has_key:
                await self._secret(tenant_id, one)
            else:
                await self._value(tenant_id, one)

    async def _value(self, tenant_id: str | None, named: Named) -> Any:
        if named.kind is Kind.SECRET:
            return self._opened(await self._secret(tenant_id, named))
        found = await self._stores.variables.get(stored_key(tenant_id, named.name))
        if found is None:
            raise Unresolvable(f"{named} does not exist")
        return found.value.value

    async def _secret(self, tenant_id: str | None, named: Named) -> SecretRecord:
        found = await self._stores.secrets.get(stored_key(tenant_id, named.name))
        if found is None:
            raise Unresolvable(f"{named} does not exist")
        return replace(found.value, tenant_id=tenant_id, name=named.name)

    def _opened(self, record: SecretRecord) -> str:
        if not self._seal.has_key:
            raise Unresolvable(f"secret {record.name!r} cannot be opened: {KEY_SETTING} is not set here")
        try:
            return self._seal.open(record.sealed, bound_to(record.tenant_id, record.name))
        except WrongKey:
            # Not chained: nothing of the value or the key belongs into a log.
            raise Unresolvable(
                f"secret {record.name!r} cannot be opened with the keys of {KEY_SETTING}"
            ) from None


class ResolveJob:
    """On a worker."""

    def __init__(self, values: ReadValues) -> None:
        self._values = values

    async def __call__(self, job: Job) -> Job:
        """With values in place of references. Raises Unresolvable or InvalidRequest."""
        if job.references is None:
            return job
        params = job.params or {}
        values = await self._values(job.tenant_id, named_in(params, job.references))
        return ResolvedJob(
            **{**asdict(job), "params": resolved(params, job.references, values)},
            secrets=tuple(str(value) for named, value in values.items() if named.kind is Kind.SECRET),
        )


class RequireResolvable:
    """At a gateway, for requests of clients: refuses what a worker would fail."""

    def __init__(self, values: ReadValues, workers: ListWorkers) -> None:
        self._values = values
        self._workers = workers

    async def __call__(self, submission: Submission) -> None:
        """Raises Unresolvable."""
        if submission.references is None:
            return
        if older := self._workers.lacking(RESOLVES, submission.tag):
            raise Unresolvable(
                f"workers that are too old to resolve secrets and variables have the tag {submission.tag!r}: "
                f"{', '.join(older[:5])}; update them"
            )
        await self._values.check(submission.tenant_id, named_in(submission.params, submission.references))


class ResolveTexts:
    """For settings that a gateway uses itself, such as the address of a channel."""

    def __init__(self, values: ReadValues) -> None:
        self._values = values

    async def __call__(
        self, tenant_id: str | None, texts: dict[str, Any]
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The texts with all references resolved, and the secrets in them, to be masked (`Masks`).

        Only for what somebody with the scope `deploy` has written. Raises Unresolvable or InvalidRequest.
        """
        plain, references = read(texts, of="")
        if references is None:
            return texts, ()
        values = await self._values(tenant_id, named_in(plain, references))
        secrets = tuple(str(one) for named, one in values.items() if named.kind is Kind.SECRET)
        return resolved(plain, references, values), secrets
