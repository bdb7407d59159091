"""`secrets` and `variables` of a client."""

from typing import Any

from pyoco_server.http_client.answers import (
    Secret,
    SecretDeleted,
    SecretList,
    Variable,
    VariableDeleted,
    VariableList,
)
from pyoco_server.http_client.calls import Calls, blocking, given, segment


class AsyncSecrets(Calls):
    """Calls about secrets. Their values never come back."""

    async def put(self, name: str, value: str) -> Secret:
        """Params name it as `${secrets.NAME}`."""
        secret: Secret = await self._call("PUT", f"/secrets/{segment(name)}", json={"value": value})
        return secret

    async def get(self, name: str) -> Secret:
        """Its name and times."""
        secret: Secret = await self._call("GET", f"/secrets/{segment(name)}")
        return secret

    async def list(self, cursor: str | None = None, limit: int | None = None) -> SecretList:
        """Newest first: `items` and `next_cursor`."""
        wanted = given({"cursor": cursor, "limit": limit})
        page: SecretList = await self._call("GET", "/secrets", params=wanted)
        return page

    async def delete(self, name: str) -> SecretDeleted:
        """Runs that name it and start later fail before their first task."""
        deleted: SecretDeleted = await self._call("DELETE", f"/secrets/{segment(name)}", is_safe=False)
        return deleted


class Secrets:
    """The same calls as `AsyncSecrets`, each until it is answered."""

    def __init__(self, calls: AsyncSecrets) -> None:
        self._calls = calls

    put = blocking(AsyncSecrets.put)
    get = blocking(AsyncSecrets.get)
    list = blocking(AsyncSecrets.list)
    delete = blocking(AsyncSecrets.delete)


class AsyncVariables(Calls):
    """Calls about variables: values that are no secrets."""

    async def put(self, name: str, value: Any) -> Variable:
        """Any JSON value. Params name it as `${vars.NAME}`."""
        variable: Variable = await self._call("PUT", f"/variables/{segment(name)}", json={"value": value})
        return variable

    async def get(self, name: str) -> Variable:
        variable: Variable = await self._call("GET", f"/variables/{segment(name)}")
        return variable

    async def list(self, cursor: str | None = None, limit: int | None = None) -> VariableList:
        """Newest first: `items` and `next_cursor`."""
        wanted = given({"cursor": cursor, "limit": limit})
        page: VariableList = await self._call("GET", "/variables", params=wanted)
        return page

    async def delete(self, name: str) -> VariableDeleted:
        """Runs that name it and start later fail before their first task."""
        deleted: VariableDeleted = await self._call("DELETE", f"/variables/{segment(name)}", is_safe=False)
        return deleted


class Variables:
    """The same calls as `AsyncVariables`, each until it is answered."""

    def __init__(self, calls: AsyncVariables) -> None:
        self._calls = calls

    put = blocking(AsyncVariables.put)
    get = blocking(AsyncVariables.get)
    list = blocking(AsyncVariables.list)
    delete = blocking(AsyncVariables.delete)
