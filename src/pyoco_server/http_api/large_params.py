"""Bodies with large params: they pass by the memory of the gateway, in files without a name."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import IO

import msgspec
from fastapi import Request
from msgspec import Struct

from pyoco_server.domain.inputs import Refused
from pyoco_server.domain.values import MAX_PARAMS_BYTES
from pyoco_server.errors import GatewayOverloaded, RequestTooLarge
from pyoco_server.http_api.bodies import invalid_json, within
from pyoco_server.http_api.gateway import gateway_of
from pyoco_server.http_api.middleware import header_of
from pyoco_server.split_params import Span, Split

REST_BYTES = 64 * 1024
"""Of a body, beside its params."""
LEFT_BYTES = MAX_PARAMS_BYTES // 2
"""Params that stay in the run when others are stored."""
WAIT_SEC = 30.0
PIECE_BYTES = 128 * 1024
_DIGITS = 20


class Large(Struct, frozen=True):
    request: bytes
    """Without the large params."""
    values: Mapping[str, AsyncIterator[bytes]]
    """The large params as JSON, each to be read once."""


def may_be_large(request: Request) -> bool:
    declared = header_of(request.scope, b"content-length") or ""
    is_number = declared.isascii() and declared.isdigit()
    return not is_number or int(declared[:_DIGITS]) > MAX_PARAMS_BYTES


@asynccontextmanager
async def large_body(request: Request, most_bytes: int) -> AsyncGenerator[bytes | Large, None]:
    """The body; as bytes if it is small after all. Raises RequestTooLarge, GatewayOverloaded."""
    _check_declared(request, most_bytes)
    gateway = gateway_of(request)
    async with aclosing(within(request, most_bytes)) as chunks:
        begin = await _beginning(chunks)
        if len(begin) <= MAX_PARAMS_BYTES:
            yield begin
            return
        async with _place(gateway.large_bodies):
            with tempfile.TemporaryFile() as body, tempfile.TemporaryFile() as values:
                await asyncio.to_thread(body.write, begin)
                async for chunk in chunks:
                    await asyncio.to_thread(body.write, chunk)
                body.flush()
                async with gateway.splitting:
                    found = await _split(body.fileno(), values.fileno())
                pieces = {name: _pieces(values, span) for name, span in found.values.items()}
                yield Large(msgspec.json.encode(found.request), pieces)


async def _beginning(chunks: AsyncIterator[bytes]) -> bytes:
    """All of a small body; of a large one enough to know that it is."""
    found = bytearray()
    async for chunk in chunks:
        found += chunk
        if len(found) > MAX_PARAMS_BYTES:
            break
    return bytes(found)


def _check_declared(request: Request, most_bytes: int) -> None:
    declared = header_of(request.scope, b"content-length") or ""
    if declared.isascii() and declared.isdigit() and int(declared[:_DIGITS]) > most_bytes:
        raise RequestTooLarge(f"the body has {declared} bytes; at most {most_bytes} are allowed")


@asynccontextmanager
async def _place(places: asyncio.Semaphore) -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout(WAIT_SEC):
            await places.acquire()
    except TimeoutError as error:
        raise GatewayOverloaded(f"too many large requests: no room in {WAIT_SEC:.0f} s") from error
    try:
        yield
    finally:
        places.release()


async def _split(body: int, values: int) -> Split:
    numbers = (body, values, MAX_PARAMS_BYTES, LEFT_BYTES)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "pyoco_server.split_params", *map(str, numbers)),
        pass_fds=(body, values),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RequestTooLarge("params: they take too much memory to be checked; send some of it as text")
    found = msgspec.json.decode(output, type=Split)
    if found.refused is not None:
        raise invalid_json(Refused(tuple(found.refused[0]), found.refused[1]))
    if found.too_large:
        raise RequestTooLarge(found.too_large)
    if (size := len(msgspec.json.encode(found.request))) > MAX_PARAMS_BYTES + REST_BYTES:
        raise RequestTooLarge(f"the body has {size} bytes beside large params")
    return found


async def _pieces(file: IO[bytes], span: Span) -> AsyncIterator[bytes]:
    end = span.start + span.size
    for start in range(span.start, end, PIECE_BYTES):
        read = partial(os.pread, file.fileno(), min(PIECE_BYTES, end - start), start)
        yield await asyncio.to_thread(read)
