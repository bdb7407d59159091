"""A4: bodies and headers made to exhaust a gateway; a real one, over real sockets."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from pyoco_server.cli.http_server import BoundedHead
from pyoco_server.cli.stack import gateway as gateway_here
from pyoco_server.config import NatsBackendConfig
from pyoco_server.wiring import EmbeddedNats
from pyoco_server.wiring.gateway import Tuning
from support.gateway import memory_app
from support.gateway_process import GatewayProcess, gateway_process
from support.nats_server import delete_streams_of, free_port, unique_config
from support.programs import Programs
from support.waiting import PATIENCE_SEC

GIGABYTE = 1_000_000_000
MEGABYTE = b"x" * 1_000_000
GROWTH_MB = 20.0
SOON_SEC = PATIENCE_SEC / 12
"""10 s on a quiet machine."""
HEAD_END = b"\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(nats_server: EmbeddedNats, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One for all attacks: each must leave it as well as it was."""
    programs = Programs(tmp_path_factory.mktemp("gateway"), fresh_start=True)  # memory is measured
    config = unique_config(nats_server.url)
    with gateway_process(programs, config) as process:
        yield process
    assert programs.are_gone()
    asyncio.run(delete_streams_of(config))


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]).encode() + HEAD_END


def json_of(body: bytes, *headers: str, path: str = "/runs") -> list[bytes]:
    return [head(path, "Content-Type: application/json", f"Content-Length: {len(body)}", *headers), body]


def chunked(pieces: Iterable[bytes], path: str, *headers: str) -> Iterator[bytes]:
    yield head(path, "Transfer-Encoding: chunked", *headers)
    for piece in pieces:
        yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def a_gigabyte(first: bytes = b"") -> Iterator[bytes]:
    yield from (first,) if first else ()
    yield from (MEGABYTE for _ in range(GIGABYTE // len(MEGABYTE)))


def parts(count: int) -> bytes:
    one = b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n1\r\n'
    return one * count + b"--x--\r\n"


def form_of(body: bytes, path: str) -> list[bytes]:
    return [
        head(path, "Content-Type: multipart/form-data; boundary=x", f"Content-Length: {len(body)}"),
        body,
    ]


HUNG_UP = {431, 0}
"""Whoever is still sending when the gateway hangs up may not read its answer."""
FORM = "Content-Type: multipart/form-data; boundary=x"
FILE = b'--x\r\nContent-Disposition: form-data; name="workflow"; filename="f"\r\n\r\n'
DEEP = b'{"flow_name": "f", "params": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
BOMB = gzip.compress(json.dumps({"flow_name": "f", "params": {"x": "0" * 50_000_000}}).encode())
WIDE = json.dumps({"flow_name": "f", "params": {str(n): n for n in range(20_000)}, "tags": ["t"] * 100_000})

ATTACKS: dict[str, tuple[Callable[[], Iterable[bytes]], set[int]]] = {
    "a declared gigabyte": (lambda: [head("/runs", f"Content-Length: {GIGABYTE}")], {413}),
    "a sent gigabyte": (lambda: chunked(a_gigabyte(), "/runs"), {413}),
    "a batch of a gigabyte": (lambda: chunked(a_gigabyte(), "/runs/batch"), {413}),
    "a flow of a gigabyte": (lambda: chunked(a_gigabyte(FILE), "/runs/yaml", FORM), {413}),
    "10,000 parts": (lambda: form_of(parts(10_000), "/runs/yaml"), {413, 422}),
    "10,000 parts for a wheel": (lambda: form_of(parts(10_000), "/wheels"), {422}),
    "a part that never ends its headers": (
        lambda: chunked([b"--x\r\n", *([b"A: " + MEGABYTE] * 20)], "/wheels", FORM),
        {413, 422},
    ),
    "100,000 levels": (lambda: json_of(DEEP), {422}),
    "100,000 levels in a batch": (lambda: json_of(b'{"runs": [' + DEEP + b"]}", path="/runs/batch"), {422}),
    "a gzip bomb": (lambda: json_of(BOMB, "Content-Encoding: gzip"), {413, 415, 422}),
    "many tags": (lambda: json_of(WIDE.encode()), {413, 422}),
    "a huge header": (lambda: [head("/runs", f"X-Large: {'x' * 10_000_000}", method="GET")], HUNG_UP),
    "a huge path": (lambda: [head("/runs/" + "x" * 10_000_000, method="GET")], HUNG_UP),
    "100,000 headers": (
        lambda: [head("/runs", *(f"X-{n}: x" for n in range(100_000)), method="GET")],
        HUNG_UP,
    ),
    "a huge idempotency key": (
        lambda: json_of(b'{"flow_name": "f"}', f"Idempotency-Key: {'k' * 60_000}"),
        {400, 422, 431},
    ),
    "a negative length": (lambda: [head("/runs", "Content-Length: -1")], {400}),
    "two lengths": (
        lambda: [head("/runs", "Content-Length: 2", "Content-Length: 30"), b"{}"],
        {400},
    ),
}


async def attack(gateway: GatewayProcess, pieces: Iterable[bytes]) -> int:
    """The status that is answered, or 0 when the gateway just hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    sending = asyncio.ensure_future(_send(writer, pieces))
    try:
        async with asyncio.timeout(30):
            line = await reader.readline()
    except ConnectionError:
        line = b""
    finally:
        sending.cancel()
        await asyncio.wait({sending})
        writer.close()
    return int(line.split()[1]) if line else 0


async def _send(writer: asyncio.StreamWriter, pieces: Iterable[bytes]) -> None:
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        return  # it was told enough


async def is_well(gateway: GatewayProcess) -> bool:
    return await attack(gateway, json_of(b'{"flow_name": "f"}')) == 200


@pytest.mark.parametrize("name", ATTACKS)
async def test_a4_a_request_that_is_too_much_is_refused_soon_and_cheaply(
    gateway: GatewayProcess, name: str
) -> None:
    make, expected = ATTACKS[name]
    assert await is_well(gateway)
    before, began = gateway.rss_mb(), time.monotonic()
    statuses = {await attack(gateway, make()) for _ in range(3)}
    took, grown = (time.monotonic() - began) / 3, gateway.rss_mb() - before
    assert statuses <= expected
    assert took < SOON_SEC
    assert grown < GROWTH_MB, f"{grown:.0f} MB more"
    assert await is_well(gateway)


async def test_a4_a_hundred_at_once_take_no_more(gateway: GatewayProcess) -> None:
    assert await is_well(gateway)
    before = gateway.rss_mb()
    await asyncio.gather(*(attack(gateway, json_of(DEEP)) for _ in range(100)))
    grown = gateway.rss_mb() - before
    assert grown < 2 * GROWTH_MB, f"{grown:.0f} MB more"
    assert await is_well(gateway)


@pytest.mark.parametrize("path", ["/runs", "/runs/yaml", "/wheels"])
async def test_a4_a_slow_sender_is_sent_away(path: str) -> None:
    """ERR-PYOCO-0002"""
    kind = "application/json" if path == "/runs" else "multipart/form-data; boundary=x"

    async def slowly() -> AsyncIterator[bytes]:
        yield b"--x\r\n"
        await asyncio.Event().wait()

    body: Any = slowly()
    given = {"tuning": Tuning(body_timeout_sec=0.2)}
    async with memory_app(given=given) as gateway, asyncio.timeout(SOON_SEC):
        answer = await gateway.client.post(path, content=body, headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["err_id"]) == (408, "ERR-PYOCO-0002")


@pytest.mark.parametrize("path", ["/runs/yaml", "/wheels"])
async def test_a4_a_sender_of_a_byte_now_and_then_is_sent_away(config: NatsBackendConfig, path: str) -> None:
    """D57: a byte before each patience is over kept an upload open for ever."""
    port = free_port()
    tuning = Tuning(body_timeout_sec=0.5)
    async with gateway_here(config, "127.0.0.1", port, tuning=tuning), asyncio.timeout(2 * SOON_SEC):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def drip() -> None:
            writer.write(head(path, FORM, "Content-Length: 100000") + FILE)
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(0.1)

        dripping = asyncio.ensure_future(drip())
        assert (await reader.readline()).split()[1] == b"408"
        dripping.cancel()
        writer.close()


class ImpatientHead(BoundedHead):
    head_timeout_sec = 0.2


@pytest.mark.parametrize("sent", [b"", b"GET /runs HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a4_a_head_that_does_not_come_to_its_end_is_not_waited_for(
    config: NatsBackendConfig, sent: bytes
) -> None:
    port = free_port()
    async with gateway_here(config, "127.0.0.1", port, protocol=ImpatientHead), asyncio.timeout(SOON_SEC):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()
