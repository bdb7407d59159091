"""What the HTTP client tells when it is not answered."""

import socket

import pytest

from pyoco_server import PyocoHttpClient
from pyoco_server.errors import GatewayUnreachable
from support.nats_server import free_port
from support.things import RUN_ID


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
