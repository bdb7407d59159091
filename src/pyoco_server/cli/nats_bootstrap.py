"""`up --with-nats-bootstrap`: for those who manage their NATS with the program nats-bootstrap."""

import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

from cyclopts import Parameter

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.output import Flag
from pyoco_server.cli.sockets import require_free
from pyoco_server.config import NatsBackendConfig
from pyoco_server.errors import InvalidCliInput, NatsUnavailable
from pyoco_server.wiring import BootstrapNats, without_credentials

PROGRAM = "nats-bootstrap"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_CLIENT_PORT = 4222
DEFAULT_HTTP_PORT = 8222
DEFAULT_START_TIMEOUT_SEC = 20.0


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BootstrapOptions:
    with_nats_bootstrap: Flag = False
    """Have the program nats-bootstrap (installed separately) start a NATS, and stop it at the end."""

    nats_listen_host: str | None = None
    """With --with-nats-bootstrap: the address that NATS listens on. Default: 127.0.0.1"""

    nats_client_port: int | None = None
    """With --with-nats-bootstrap: the port for clients. Default: 4222"""

    nats_http_port: int | None = None
    """With --with-nats-bootstrap: the port for monitoring. Default: 8222"""

    nats_start_timeout_sec: float | None = None
    """With --with-nats-bootstrap: how long its start may take. Default: 20"""


NO_BOOTSTRAP = BootstrapOptions()


def check_options(options: BootstrapOptions) -> None:
    """What belongs to the bootstrap means nothing without it."""
    for option in fields(options):
        if not options.with_nats_bootstrap and getattr(options, option.name) not in (None, False):
            raise InvalidCliInput(texts.ONLY_WITH_BOOTSTRAP(option=f"--{option.name.replace('_', '-')}"))


@contextmanager
def bootstrapped_nats(
    options: BootstrapOptions, config: NatsBackendConfig, directory: Path, *, url_is_given: bool
) -> Iterator[tuple[NatsBackendConfig, BootstrapNats]]:
    """The settings with its url, and the NATS. Raises InvalidCliInput or NatsUnavailable."""
    nats = _prepared(options, directory)
    if url_is_given and config.nats_url.removesuffix("/") != nats.url:
        given = without_credentials(config.nats_url)
        raise InvalidCliInput(texts.URL_IS_NOT_BOOTSTRAPS(url=nats.url, given=given))
    host = options.nats_listen_host or DEFAULT_HOST
    require_free(host, nats.port, "--nats-client-port")
    require_free(host, nats.http_port, "--nats-http-port")
    try:
        nats.start()
    except NatsUnavailable as error:
        told = texts.BOOTSTRAP_NOT_STARTED(url=nats.url, reason=error.detail, log=nats.log)
        raise NatsUnavailable(told) from error
    try:
        yield replace(config, nats_url=nats.url), nats
    finally:
        nats.stop()


def _prepared(options: BootstrapOptions, directory: Path) -> BootstrapNats:
    beside_us = sysconfig.get_path("scripts")
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=beside_us)
    if program is None:
        raise InvalidCliInput(texts.NO_NATS_BOOTSTRAP())
    return BootstrapNats(
        program,
        directory,
        host=options.nats_listen_host or DEFAULT_HOST,
        port=options.nats_client_port or DEFAULT_CLIENT_PORT,
        http_port=options.nats_http_port or DEFAULT_HTTP_PORT,
        patience_sec=options.nats_start_timeout_sec or DEFAULT_START_TIMEOUT_SEC,
    )
