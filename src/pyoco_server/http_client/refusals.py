"""What the client raises when the server refuses: an error of httpx2, and of httpx where that is used."""

import sys
from functools import cache
from typing import Any, NoReturn

import httpx2


class RequestRefused(httpx2.HTTPStatusError):
    """An answer with an error status. The server's words are in `err_id`, `detail` and `advice`."""

    def __init__(self, message: str, response: httpx2.Response) -> None:
        # Not by `super()`: the next class may be one of httpx, which wants other arguments.
        Exception.__init__(self, message)
        self._request = response.request
        self.response = response
        answer = _answer(response)
        self.err_id: str | None = answer.get("err_id")
        self.detail: Any = answer.get("detail")
        self.advice: str | None = answer.get("advice") or answer.get("message")


def raise_refused(response: httpx2.Response) -> NoReturn:
    """The answer has been read."""
    status = f"{response.status_code} {response.reason_phrase}".strip()
    detail = _answer(response).get("detail")
    raise _kind("httpx" in sys.modules)(
        f"{status} for {response.request.method} {response.request.url}" + (f": {detail}" if detail else ""),
        response,
    )


@cache
def _kind(is_with_httpx: bool) -> type[RequestRefused]:  # noqa: FBT001 - a key of the cache
    """Programs that were written for httpx catch its errors; who has not imported it does not."""
    if not is_with_httpx:
        return RequestRefused
    import httpx  # noqa: PLC0415

    return type("RequestRefused", (RequestRefused, httpx.HTTPStatusError), {"__module__": __name__})


def _answer(response: httpx2.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
