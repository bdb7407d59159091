"""NATS itself: where it is, started here or not; what it holds, made, looked at, saved and restored."""

from pathlib import Path

from pyoco_server.config import NatsBackendConfig
from pyoco_server.jetstream import admin, topology
from pyoco_server.jetstream.admin import NatsReport, inspect
from pyoco_server.jetstream.connection import without_credentials
from pyoco_server.jetstream.nats_server import BootstrapNats, Durability, EmbeddedNats, running_embedded_url
from pyoco_server.jetstream.nats_server import find_binary as find_nats_server
from pyoco_server.wiring.backends import connected, open_backend

__all__ = [
    "BootstrapNats",
    "Durability",
    "EmbeddedNats",
    "NatsReport",
    "back_up",
    "ensure_resources",
    "find_nats_server",
    "inspect_nats",
    "restore",
    "running_embedded_url",
    "without_credentials",
]


async def inspect_nats(config: NatsBackendConfig) -> NatsReport:
    """What is there, without changing it. Raises NatsUnavailable or IncompatibleNats."""
    async with connected(config, "pyoco-server doctor", patiently=False) as connection:
        return await inspect(connection, config)


async def ensure_resources(config: NatsBackendConfig | None = None) -> None:
    """Create the streams, buckets and the object store that are missing, and check those that exist."""
    settings = config or NatsBackendConfig.from_env()
    async with open_backend(settings, name="pyoco-server ensure-resources"):
        pass


async def back_up(config: NatsBackendConfig, directory: Path) -> dict[str, int]:
    """Every stream and bucket into a directory: how many messages of each, by name.

    Jobs come first: a run that ends meanwhile has a job too many, which is dropped, and not one too few.
    """
    saved = {}
    async with connected(config, "pyoco-server-admin backup", patiently=False) as connection:
        for spec in topology.resources(config):
            stream = await admin.save_stream(connection, spec.name, directory)
            if stream is not None:
                saved[stream.name] = stream.messages
    return saved


async def restore(config: NatsBackendConfig, directory: Path) -> dict[str, int]:
    """What `back_up` saved, into a NATS that has nothing of it, with the replicas of the settings."""
    streams = admin.saved_streams(directory)
    async with connected(config, "pyoco-server-admin restore", patiently=False) as connection:
        await admin.require_absent(connection, streams)
        for stream in streams:
            await admin.restore_stream(connection, stream, directory, config.jetstream_replicas)
    return {stream.name: stream.messages for stream in streams}
