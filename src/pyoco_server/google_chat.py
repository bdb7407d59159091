"""Send a text to a space of Google Chat."""

import asyncio

import httpx2

from pyoco_server.domain.events.notifications import HOST, Delivered, path_and_query

TIMEOUT_SEC = 10.0


class GoogleChat:
    """The address is a secret: no answer, error or log line has it, and no redirect is followed."""

    def __init__(self, base_url: str = "") -> None:
        """`base_url` is where a test listens instead of Google."""
        self._base_url = base_url.rstrip("/") or HOST

    async def send(self, webhook_url: str, text: str) -> Delivered:
        request = httpx2.Request("POST", self._base_url + path_and_query(webhook_url), json={"text": text})
        try:
            # A bare transport: a client would log the address, follow redirects and look for proxies.
            async with asyncio.timeout(TIMEOUT_SEC), httpx2.AsyncHTTPTransport() as transport:
                response = await transport.handle_async_request(request)
                status = response.status_code
                await response.aclose()  # its body is nobody's business
        except TimeoutError:
            return Delivered(False, None, f"Google Chat did not answer within {TIMEOUT_SEC:g} s.")
        except httpx2.HTTPError as error:
            return Delivered(False, None, f"Google Chat could not be reached ({type(error).__name__}).")
        if not response.is_success:
            return Delivered(False, status, f"Google Chat answered with HTTP {status}.")
        return Delivered(True, status, "The message was sent.")
