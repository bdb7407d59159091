"""What the HTTP client tells when it is not answered."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from pyoco_server import PyocoHttpClient
from pyoco_server.cli.stack import gateway as gateway_on
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import GatewayUnreachable
from pyoco_server.http_client.transport import RequestRefused
from support.builders import RUN_ID
from support.nats_server import free_port
from support.wheels import a_wheel, wheel_name


def test_a_server_that_is_not_there_is_unreachable() -> None:
    """REQ-0001"""
    url = f"http://127.0.0.1:{free_port()}"
    with (
        PyocoHttpClient(url) as client,
        pytest.raises(GatewayUnreachable, match=f"no server answers at {url}"),
    ):
        client.get_run(RUN_ID)


def test_a_server_that_never_answers_is_unreachable_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            PyocoHttpClient(url, timeout=0.2) as client,
            pytest.raises(GatewayUnreachable, match="ReadTimeout"),
        ):
            client.submit_run("chain")


async def test_errors_of_the_client_are_those_of_httpx_too(config: NatsBackendConfig) -> None:
    """D39: programs that were written for httpx catch them, and find the server's words in them."""
    port = free_port()
    async with gateway_on(config, "127.0.0.1", port):
        with PyocoHttpClient(f"http://127.0.0.1:{port}") as client:
            calls: list[Callable[[], Any]] = [
                lambda: client.get_run(RUN_ID),
                lambda: list(client.watch_run(RUN_ID)),
                lambda: client.download_wheel("a-1-py3-none-any.whl", "."),
            ]
            for call in calls:
                with pytest.raises(httpx.HTTPStatusError) as caught:
                    await asyncio.to_thread(call)
                error: object = caught.value
                assert isinstance(error, RequestRefused)
                assert (error.response.status_code, error.request.method) == (404, "GET")
                assert error.err_id in ("ERR-PYOCO-0005", "ERR-PYOCO-0023")
                assert error.detail in ("run not found", "wheel not found")
                assert error.advice
                assert error.detail in str(error)


async def test_older_ways_to_call_the_client_work(config: NatsBackendConfig) -> None:
    """D39: `upload_wheel(filename=, data=)` and `submit_run_yaml(yaml, tag)`."""
    port = free_port()
    async with gateway_on(config, "127.0.0.1", port):
        with PyocoHttpClient(f"http://127.0.0.1:{port}") as client:
            data = a_wheel()
            upload = {"filename": wheel_name(), "data": data, "tags": ["cpu"]}
            wheel = await asyncio.to_thread(lambda: client.upload_wheel(**upload))  # type: ignore[arg-type]
            assert (wheel["name"], wheel["size_bytes"], wheel["tags"]) == (wheel_name(), len(data), ["cpu"])
            with pytest.raises(TypeError, match="filename= and data="):
                client.upload_wheel(filename=wheel_name())
            yaml = 'flow: {graph: "a"}\ntasks: {a: {callable: "mine:a"}}\n'
            submitted = await asyncio.to_thread(client.submit_run_yaml, yaml, "gpu")
            run = await asyncio.to_thread(client.get_run, submitted["run_id"])
            assert (run["tag"], run["flow_name"]) == ("gpu", "workflow")
