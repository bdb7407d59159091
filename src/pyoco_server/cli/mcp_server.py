"""`pyoco-server mcp`: tools for agents, over stdin and stdout or over HTTP."""

import asyncio
import signal
import sys
from dataclasses import dataclass
from importlib.metadata import version

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.failures import FAILED, INTERRUPTED, fail
from pyoco_server.cli.output import note
from pyoco_server.cli.terminal import run
from pyoco_server.config import NatsBackendConfig
from pyoco_server.environment import secret_variable
from pyoco_server.errors import InvalidCliInput
from pyoco_server.logs import configure_logging
from pyoco_server.mcp import PATH, Change

try:
    from pyoco_server.mcp.connection import Gateway
    from pyoco_server.mcp.server import http_app, new_server
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] != "mcp":
        raise
    fail(texts.MCP_NOT_INSTALLED())

VERSION = version("pyoco-server")


@dataclass(frozen=True)
class Offer:
    """What agents may do, and where."""

    url: str
    api_key_header: str
    allowed: frozenset[Change]

    def gateway(self, api_key: str | None) -> Gateway:
        return Gateway(
            url=self.url,
            api_key=api_key,
            api_key_header=self.api_key_header,
            user_agent=f"pyoco-server-mcp/{VERSION}",
        )


def serve_stdio(offer: Offer) -> None:
    """Until the agent closes stdin. Stdout belongs to the protocol."""
    _settings()
    server = new_server(offer.gateway(secret_variable("PYOCO_API_KEY")), offer.allowed, VERSION)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread waits for stdin, and nothing is to be finished
    run(server.run_stdio_async())


def serve_http(offer: Offer, host: str, port: int) -> int:
    """The exit code."""
    # The gateway's web framework takes a second to import.
    from pyoco_server.cli.http_server import require_free  # noqa: PLC0415

    config = _settings()
    names = _names(config, host, port)
    require_free(host, port)
    return run(_serve(offer, config, names, host, port))


async def _serve(offer: Offer, config: NatsBackendConfig, names: list[str], host: str, port: int) -> int:
    from pyoco_server.cli.http_server import (  # noqa: PLC0415 - as above
        BoundedHead,
        Server,
        http_options,
        local_url,
    )
    from pyoco_server.cli.stack import Serving, stop_signal  # noqa: PLC0415

    app = http_app(new_server(offer.gateway(api_key=None), offer.allowed, VERSION), names)
    server = Server(http_options(app, config, host=host, port=port, http=BoundedHead))
    serving = asyncio.ensure_future(server.serve())
    while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    _note_address(offer, f"{local_url(host, port)}{PATH}")
    received = await stop_signal(Serving(serving, asyncio.Event()), None)
    server.should_exit = True
    await serving
    return INTERRUPTED if received is signal.SIGINT else 0 if received is signal.SIGTERM else FAILED


def _note_address(offer: Offer, url: str) -> None:
    note(texts.MCP_AT(url=url, server=offer.url))
    if secret_variable("PYOCO_API_KEY") is not None:
        note(texts.MCP_KEYS_OF_AGENTS(header=offer.api_key_header))
    note(texts.CTRL_C_STOPS_IT())


def _names(config: NatsBackendConfig, host: str, port: int) -> list[str]:
    """Under which agents reach it. Raises InvalidCliInput if they are unknown."""
    from pyoco_server.cli.http_server import WILDCARDS  # noqa: PLC0415 - as above
    from pyoco_server.cli.stack import LOOPBACK, loopback_names  # noqa: PLC0415

    if config.hosts_allowed:
        return [name for known in sorted(config.hosts_allowed) for name in (known, f"{known}:*")]
    local = loopback_names(host)
    if not local and host.strip("[]") in WILDCARDS:
        raise InvalidCliInput(texts.MCP_NAMES_NEEDED(host=host))
    names = [*LOOPBACK, *local] if local else [f"[{host}]" if ":" in host.strip("[]") else host]
    return [f"{name}:{port}" for name in dict.fromkeys(names)]


def _settings() -> NatsBackendConfig:
    config = NatsBackendConfig.from_env()
    configure_logging(service="pyoco-server:mcp", level=config.log_level, stream=sys.stderr)
    return config
