"""Which requests may be sent again by themselves: those that do the same when they are sent twice."""

import time
from collections.abc import Callable
from http import HTTPStatus

import httpx2

TRIES = 4
FIRST_PAUSE_SEC = 0.2
MAX_PAUSE_SEC = 2.0

_PASSING = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})


def send_again_if_safe(send: Callable[[], httpx2.Response], *, is_safe: bool) -> httpx2.Response:
    """The answer of `send`; with `is_safe` it is repeated while the server is away or overloaded."""
    for left in range(TRIES - 1 if is_safe else 0, 0, -1):
        pause = min(MAX_PAUSE_SEC, FIRST_PAUSE_SEC * 2 ** (TRIES - 1 - left))
        try:
            response = send()
        except httpx2.TransportError:
            time.sleep(pause)
            continue
        if response.status_code not in _PASSING:
            return response
        time.sleep(_asked_for(response) or pause)
    return send()


def _asked_for(response: httpx2.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return min(float(text), MAX_PAUSE_SEC) if text.isdigit() else None
