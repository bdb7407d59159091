"""`PyocoHttpClient`: the server's HTTP interface for Python programs."""

from collections.abc import Sequence
from typing import Any, Self

import httpx2

from pyoco_server.errors import GatewayUnreachable


class PyocoHttpClient:
    """Speaks to one server. HTTP errors are raised as `httpx2.HTTPStatusError`."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        api_key_header: str = "X-API-Key",
        *,
        timeout: float = 10.0,
    ) -> None:
        headers = {api_key_header: api_key} if api_key else {}
        self._http = httpx2.Client(base_url=base_url, headers=headers, timeout=timeout)

    def submit_run(
        self,
        flow_name: str,
        params: dict[str, Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        body = {"flow_name": flow_name, "params": params or {}, "tag": tag, "tags": tags}
        return self._json("POST", "/runs", json={k: v for k, v in body.items() if v is not None})

    def get_run(self, run_id: str, include: Sequence[str] = ()) -> dict[str, Any]:
        return self._json("GET", f"/runs/{run_id}", params={"include": list(include)})

    def get_run_with_records(self, run_id: str) -> dict[str, Any]:
        return self.get_run(run_id, include=["records"])

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _json(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, **options)
        except httpx2.TransportError as error:
            raise GatewayUnreachable(
                f"no server answers at {self._http.base_url} ({type(error).__name__})"
            ) from error
        response.raise_for_status()
        answer: dict[str, Any] = response.json()
        return answer
