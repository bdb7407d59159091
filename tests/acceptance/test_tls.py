"""The client and a server behind a proxy that speaks TLS, with a certificate of an authority of its own."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyoco_server import AsyncPyocoHttpClient, PyocoHttpClient
from pyoco_server.errors import UntrustedCertificate
from support.installation import FLOWS
from support.nats_server import free_port
from support.programs import Programs
from support.waiting import until_now

CADDYFILE = """\
{
	admin off
	skip_install_trust
	auto_https disable_redirects
}

https://localhost:%d {
	tls internal
	reverse_proxy 127.0.0.1:%d {
		flush_interval -1
	}
}
"""


@contextmanager
def secured(programs: Programs) -> Iterator[tuple[str, Path]]:
    """Its address, and the certificate that vouches for it."""
    gateway, site = free_port(), free_port()
    (programs.directory / "Caddyfile").write_text(CADDYFILE % (site, gateway))
    homes = {"XDG_DATA_HOME": str(programs.directory), "XDG_CONFIG_HOME": str(programs.directory)}
    up = ("pyoco-server", "up", "--with-worker", "--flow-resolver", FLOWS)
    with (
        programs.started(*up, PYOCO_HTTP_PORT=str(gateway)) as server,
        programs.started("caddy", "run", "--adapter", "caddyfile", "--config", "Caddyfile", **homes),
    ):
        server.says("gateway ready")
        authority = programs.directory / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        until_now(authority.exists)
        yield f"https://localhost:{site}", authority


def test_who_knows_the_authority_is_served_and_who_does_not_is_warned(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secured(programs) as (address, authority):
        told = programs.run("pyoco-client", "list", PYOCO_SERVER_URL=address)
        assert told.returncode == 1
        assert "ERR-PYOCO-0001" in told.stderr
        assert f"the certificate of {address} is refused" in told.stderr
        assert "SSL_CERT_FILE" in told.stderr

        trusting = {"PYOCO_SERVER_URL": address, "SSL_CERT_FILE": str(authority)}
        ran = programs.run("pyoco-client", "submit", "--flow-name", "tiny", "--wait", **trusting)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["status"] == "COMPLETED"

        with PyocoHttpClient(address) as stranger, pytest.raises(UntrustedCertificate):
            stranger.list_runs()
        with PyocoHttpClient(address) as stranger, pytest.raises(UntrustedCertificate):
            list(stranger.watch_run("any"))  # waiting would not help
        with pytest.raises(UntrustedCertificate):
            asyncio.run(run_tiny(address))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        with PyocoHttpClient(address) as client:
            for _ in range(3):
                run_id = client.submit_run("tiny")["run_id"]
            *_, last = client.watch_run(run_id)
            assert last["snapshot"]["status"] == "COMPLETED"
        assert asyncio.run(run_tiny(address)) is not None


async def run_tiny(address: str) -> object:
    async with AsyncPyocoHttpClient(address) as client:
        return await client.run("tiny")
