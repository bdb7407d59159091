"""`up --with-nats-bootstrap`: start NATS with the external program nats-bootstrap."""

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
    """Start NATS with nats-bootstrap (installed separately), and stop it on exit."""

    nats_listen_host: str | None = None
    """With --with-nats-bootstrap: NATS listen address. Default: 127.0.0.1"""

    nats_client_port: int | None = None
    """With --with-nats-bootstrap: NATS client port. Default: 4222"""

    nats_http_port: int | None = None
    """With --with-nats-bootstrap: NATS monitoring port. Default: 8222"""

    nats_start_timeout_sec: float | None = None
    """With --with-nats-bootstrap: start timeout in seconds. Default: 20"""


NO_BOOTSTRAP = BootstrapOptions()


def check_options(options: BootstrapOptions) -> None:
    """Refuse bootstrap options without --with-nats-bootstrap."""
    for option in fields(options):
        if not options.with_nats_bootstrap and getattr(options, option.name) not in (None, False):
            raise InvalidCliInput(texts.ONLY_WITH_BOOTSTRAP(option=f"--{option.name.replace('_', '-')}"))


@contextmanager
def bootstrapped_nats(
    options: BootstrapOptions, config: NatsBackendConfig, directory: Path, *, url_is_given: bool
) -> Iterator[tuple[NatsBackendConfig, BootstrapNats]]:
    """The settings with the URL of the NATS, and the NATS. Raises InvalidCliInput or NatsUnavailable."""
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
        detail = texts.BOOTSTRAP_NOT_STARTED(url=nats.url, reason=error.detail, log=nats.log)
        raise NatsUnavailable(detail) from error
    try:
        yield replace(config, nats_url=nats.url), nats
    finally:
        nats.stop()


def _prepared(options: BootstrapOptions, directory: Path) -> BootstrapNats:
    program = shutil.which(PROGRAM) or shutil.which(PROGRAM, path=sysconfig.get_path("scripts"))
    if program is None:
        raise InvalidCliInput(texts.NO_NATS_BOOTSTRAP())
    return BootstrapNats(
        program,
        directory,
        host=options.nats_listen_host or DEFAULT_HOST,
        port=options.nats_client_port or DEFAULT_CLIENT_PORT,
        http_port=options.nats_http_port or DEFAULT_HTTP_PORT,
        timeout_sec=options.nats_start_timeout_sec or DEFAULT_START_TIMEOUT_SEC,
    )
