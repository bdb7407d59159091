"""`pyoco-server up`: gateway, NATS and worker until they are stopped, and what a person reads first."""

import signal
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from pyoco_server.cli import server_texts as texts
from pyoco_server.cli.failures import FAILED, INTERRUPTED
from pyoco_server.cli.http_server import holder_of, is_loopback, local_url, require_free
from pyoco_server.cli.output import BootstrapOptions, note
from pyoco_server.cli.stack import (
    Child,
    OwnNats,
    bootstrapped_nats,
    describe_nats,
    nats_for,
    running_stack,
    stop_signal,
    worker_child,
)
from pyoco_server.cli.terminal import serve
from pyoco_server.config import NATS_ACCESS, NatsBackendConfig, env_name, is_set
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_api.pages import is_built
from pyoco_server.processes import is_taken
from pyoco_server.running_server import Durability, RunningServer, announced
from pyoco_server.wiring import EmbeddedNats, check_nats_access, without_credentials

DEFAULT_NATS_PORT = 4222


@dataclass(frozen=True)
class Place:
    """Where to listen, and which NATS to use or where to keep its data."""

    host: str
    port: int
    data_dir: Path
    durability: Durability
    nats_url: str | None
    bootstrap: BootstrapOptions


def run_up(
    config: NatsBackendConfig, place: Place, worker_flows: tuple[str, str] | None, drain_sec: float
) -> int:
    """The exit code. `worker_flows`: the flow option of the worker and its value; None: without a worker."""
    check_nats_access(config)
    require_free(place.host, place.port)
    with _nats(config, place) as (usable, nats):
        worker = (
            None if worker_flows is None else worker_child(usable, worker_flows, "worker", None, drain_sec)
        )
        server = RunningServer(nats_url=usable.nats_url, http_url=local_url(place.host, place.port))
        with announced(server, place.data_dir):
            return serve(_serve(usable, nats, place.host, place.port, worker))


def _nats(
    config: NatsBackendConfig, place: Place
) -> AbstractContextManager[tuple[NatsBackendConfig, OwnNats | None]]:
    url_is_given = place.nats_url is not None or is_set("nats_url")
    unused = [env_name(name) for name in NATS_ACCESS if getattr(config, name)]
    if unused and (place.bootstrap.with_nats_bootstrap or not url_is_given):
        raise InvalidCliInput(texts.NATS_ACCESS_UNUSED(settings=", ".join(unused)))
    if place.bootstrap.with_nats_bootstrap:
        return bootstrapped_nats(
            place.bootstrap, config, place.data_dir / "nats-bootstrap", url_is_given=url_is_given
        )
    return nats_for(
        config, external=url_is_given, directory=place.data_dir / "nats", durability=place.durability
    )


async def _serve(
    config: NatsBackendConfig, nats: OwnNats | None, host: str, port: int, worker: Child | None
) -> int:
    async with running_stack(config, nats, host, port, worker) as serving:
        note(f"NATS       {describe_nats(config, nats)}")
        _note_ignored_nats(nats)
        url = local_url(host, port)
        note((texts.DASHBOARD_AT if is_built() else texts.DASHBOARD_MISSING)(url=url))
        note(texts.HTTP_AT(url=url))
        if config.http_auth_mode == "none" and not is_loopback(host):
            note(texts.OPEN_TO_THE_NETWORK(host=host))
        if worker is None:
            command = f"pyoco-worker --flows DIR{_nats_option(config)}"
            note(texts.NO_WORKER_HERE(command=command))
        else:
            note(texts.WORKER_HERE(tag=config.default_tag))
        note(texts.CTRL_C_STOPS_IT())
        received = await stop_signal(serving, worker)
    if received is signal.SIGINT:
        return INTERRUPTED
    return 0 if received is signal.SIGTERM else FAILED


def _note_ignored_nats(nats: OwnNats | None) -> None:
    """Another program has the default port, and a worker started elsewhere would connect to it."""
    if (
        isinstance(nats, EmbeddedNats)
        and nats.port != DEFAULT_NATS_PORT
        and is_taken("127.0.0.1", DEFAULT_NATS_PORT)
    ):
        holder = holder_of(DEFAULT_NATS_PORT) or texts.ANOTHER_PROGRAM()
        note(texts.NATS_IGNORED(holder=holder, url=nats.url))


def _nats_option(config: NatsBackendConfig) -> str:
    """The option a worker needs to connect here; without it a worker uses the default port."""
    is_default = config.nats_url == NatsBackendConfig.nats_url
    return "" if is_default else f" --nats-url {without_credentials(config.nats_url)}"
