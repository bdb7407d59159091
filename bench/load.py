"""A light HTTP client for load: keep-alive connections that send prepared bytes, bounded in number."""

import asyncio
import time
from collections.abc import Callable


async def hammer(host: str, port: int, request: bytes, *, connections: int, total: int) -> list[float]:
    """Send `request` `total` times over `connections` connections; the seconds that each took."""
    return await hammer_each(host, port, lambda: request, connections=connections, total=total)


async def hammer_each(
    host: str, port: int, request: Callable[[], bytes], *, connections: int, total: int
) -> list[float]:
    """The same with a request of its own every time."""
    left = iter(range(total))
    taken: list[float] = []

    async def one_connection() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for _ in left:
            started = time.perf_counter()
            writer.write(request())
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            taken.append(time.perf_counter() - started)
        writer.close()

    await asyncio.gather(*(one_connection() for _ in range(connections)))
    return taken


def post(path: str, body: bytes) -> bytes:
    length = f"content-length: {len(body)}"
    kind = "content-type: application/json"
    head = "\r\n".join([f"POST {path} HTTP/1.1", "host: 127.0.0.1", kind, length, "", ""])
    return head.encode() + body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: 127.0.0.1", *headers, "", ""]).encode()
