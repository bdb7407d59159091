"""Turns for large bodies: JSON takes up to 40 times its size in memory once it is decoded.

A request with a large body waits until there is room for it, and leaves the room when it is answered. After a
while it is refused with 503: the client should retry. Small bodies pass. What waits is bytes as they came.
"""

import asyncio
from collections import deque

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from pyoco_server.errors import GatewayOverloaded

SMALL_BYTES = 8 * 1024
ROOM_BYTES = 1024 * 1024
"""Of bodies that are decoded at the same time: one of the largest events, or four of the largest runs."""
WAIT_SEC = 30.0
"""Longer than any request to NATS takes, so that a NATS that is away does not refuse what it would accept."""
_TURN = "pyoco.body_turn"


class Room:
    """So many bytes, given out in the order of asking. Whoever wants more than all waits for all."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._left = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, wanted: int) -> int:
        """How much was taken, to be given back."""
        size = min(wanted, self._size)
        if not self._waiting and size <= self._left:
            self._left -= size
            return size
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # given, and nobody there to use it
                self.give_back(size)
            raise
        return size

    def give_back(self, size: int) -> None:
        self._left += size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled while it waited
                self._waiting.popleft()
                continue
            if wanted > self._left:
                return
            self._waiting.popleft()
            self._left -= wanted
            turn.set_result(None)


class _Turn:
    def __init__(self, room: Room) -> None:
        self._room = room
        self.taken = 0

    async def take(self, size: int) -> None:
        try:
            async with asyncio.timeout(WAIT_SEC):
                self.taken += await self._room.take(size)
        except TimeoutError as error:
            raise GatewayOverloaded(f"too many large requests: no room in {WAIT_SEC:.0f} s") from error

    def end(self) -> None:
        self._room.give_back(self.taken)


class BodyTurns:
    """Around everything that reads bodies: whatever becomes of a request, its room is given back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._room = Room(ROOM_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        turn = scope[_TURN] = _Turn(self._room)
        try:
            await self._app(scope, receive, send)
        finally:
            if turn.taken:
                turn.end()


async def wait_for_turn(request: Request, size: int) -> None:
    """Before a body of so many bytes is decoded. A request asks once."""
    if size > SMALL_BYTES:
        await request.scope[_TURN].take(size)
