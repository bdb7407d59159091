"""Requests that share one inbox.

The library's `request` waits with `asyncio.wait_for`, which before Python 3.12 can swallow a cancellation,
and creates a random token per call; here a counter and one timer per request suffice.
"""

import asyncio
from itertools import count

from nats.aio.msg import Msg

from pyoco_server.errors import NatsUnavailable, NobodyAnswers
from pyoco_server.jetstream.access import Client

_NOBODY = "nats unavailable: no responders; check that JetStream is enabled and permitted for this user"


class Requests:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._prefix = f"{client.new_inbox()}."
        self._waiting: dict[str, asyncio.Future[Msg]] = {}
        self._numbers = count(1)

    async def open(self) -> None:
        await self._client.subscribe(f"{self._prefix}*", cb=self._received)

    async def send(self, subject: str, payload: bytes, headers: dict[str, str] | None, within: float) -> Msg:
        """The reply. Raises NatsUnavailable after a timeout or without responders."""
        loop = asyncio.get_running_loop()
        token = str(next(self._numbers))
        reply: asyncio.Future[Msg] = loop.create_future()
        timer = loop.call_later(within, _time_out, reply)
        self._waiting[token] = reply
        try:
            await self._client.publish(subject, payload, reply=self._prefix + token, headers=headers)
            return await reply
        finally:
            timer.cancel()
            self._waiting.pop(token, None)

    async def _received(self, message: Msg) -> None:
        reply = self._waiting.get(message.subject[len(self._prefix) :])
        if reply is None or reply.done():
            return
        if not message.data and (message.headers or {}).get("Status") == "503":  # no responders
            reply.set_exception(NobodyAnswers(_NOBODY))
        else:
            reply.set_result(message)


def _time_out(reply: "asyncio.Future[Msg]") -> None:
    if not reply.done():
        reply.set_exception(NatsUnavailable("nats unavailable: request timed out"))
