"""REQ-0019: watching over real sockets."""

import asyncio
import socket
import time

import httpx2

from pyoco_server.cli import http_server
from pyoco_server.cli.http_server import DRAIN_SEC
from pyoco_server.cli.stack import gateway
from pyoco_server.config import NatsBackendConfig
from support.nats_server import free_port
from support.waiting import until


async def test_a_gateway_with_open_watches_stops_at_once(config: NatsBackendConfig) -> None:
    port = free_port()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        async with gateway(config, "127.0.0.1", port):
            await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
            run_id = (await client.post("/runs", json={"flow_name": "f"})).json()["run_id"]
            opened = asyncio.Event()

            async def watch() -> list[str]:
                lines = []
                async with client.stream("GET", f"/runs/{run_id}/watch") as answer:
                    async for line in answer.aiter_lines():
                        lines.append(line)
                        opened.set()
                return lines

            watching = [asyncio.ensure_future(watch()) for _ in range(5)]
            await opened.wait()
            began = time.perf_counter()
        assert time.perf_counter() - began < DRAIN_SEC
        for lines in await asyncio.gather(*watching):
            assert lines[0] == "event: snapshot"


async def test_a_client_that_hangs_up_frees_its_place(config: NatsBackendConfig) -> None:
    port = free_port()
    async with (
        gateway(config, "127.0.0.1", port),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        await until(lambda: client.get("/ready"), lambda answer: answer.status_code == 200)
        run_id = (await client.post("/runs", json={"flow_name": "f"})).json()["run_id"]

        async def watchers() -> bool:
            return "pyoco_watchers 0.0" in (await client.get("/metrics")).text

        async with client.stream("GET", f"/runs/{run_id}/watch") as answer:
            async for _ in answer.aiter_lines():
                break
            assert not await watchers()
        await until(watchers)


async def test_a_connection_whose_client_vanished_is_ended_by_the_kernel(
    config: NatsBackendConfig,
) -> None:
    """D57: who vanishes without a FIN held a watcher's place for the 15 minutes that TCP retries."""
    accepted: list[socket.socket] = []

    class Accepting(http_server.BoundedHead):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            accepted.append(transport.get_extra_info("socket"))

    port = free_port()
    async with gateway(config, "127.0.0.1", port, protocol=Accepting):
        _, writer = await asyncio.open_connection("127.0.0.1", port)

        async def seen() -> bool:
            return bool(accepted)

        await until(seen)
        limit_ms = accepted[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert limit_ms == http_server.VANISHED_AFTER_SEC * 1000 <= 30_000
        assert accepted[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        writer.close()
