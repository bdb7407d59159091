"""Who asks, and what they may see."""

from msgspec import Struct

from pyoco_server.domain.runs import RunSnapshot


class Caller(Struct, frozen=True):
    """With auth off everybody is the same caller, without a tenant."""

    tenant_id: str | None = None
    api_key_id: str | None = None

    @property
    def name(self) -> str:
        return f"api_key:{self.api_key_id}" if self.api_key_id else "anonymous"


ANONYMOUS = Caller()


def may_see(caller: Caller, snapshot: RunSnapshot) -> bool:
    """Another tenant's run is answered like one that does not exist."""
    return caller.tenant_id is None or caller.tenant_id == snapshot.tenant_id
