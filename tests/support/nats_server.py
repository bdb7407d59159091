"""Looking into JetStream from outside, with the plain client library and none of our code."""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import fields
from functools import partial
from typing import Any

import msgspec
import nats
from nats.js.errors import NotFoundError

from pyoco_server.config import NatsBackendConfig
from pyoco_server.jetstream.streams import resources
from pyoco_server.processes import free_port as free_port_on
from support.waiting import load_factor, patience_sec

SIDE_BY_SIDE = 8
"""Processes of tests at once, at the most."""
_given: set[int] = set()


def free_port() -> int:
    """One that no test chooses again, also not beside this one: there is time before it is used."""
    ours = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SIDE_BY_SIDE
    while (port := free_port_on("127.0.0.1")) % SIDE_BY_SIDE != ours or port in _given:
        pass
    _given.add(port)
    return port


_NAMED = ("_bucket", "_stream", "_subject_prefix")
"""How the settings end that name something in JetStream."""


def patient_timeout_sec() -> float:
    """For a reply of NATS, where a test is about something else. By default it is 2 s."""
    return 5.0 * load_factor()


def unique_config(url: str, **changes: Any) -> NatsBackendConfig:
    """Settings under which nothing has a name that another test uses."""
    unique = secrets.token_hex(4)
    names: dict[str, Any] = {
        "nats_url": url,
        "jetstream_timeout_sec": patient_timeout_sec(),
        "run_heartbeat_interval_sec": 0.1,
        "worker_heartbeat_interval_sec": 0.2,
    }
    for setting in fields(NatsBackendConfig):
        if setting.name.endswith(_NAMED):
            between = "." if setting.name.endswith("_prefix") else "_"
            names[setting.name] = f"{setting.default}{between}{unique}"
    return NatsBackendConfig(**{**names, **changes})


@asynccontextmanager
async def raw_nats(url: str) -> AsyncIterator[Any]:
    """With patience: on a busy machine the library's seconds pass."""
    patience = patience_sec()
    client: Any = await nats.connect(url, connect_timeout=int(patience))
    client.jetstream = partial(client.jetstream, timeout=patience)
    try:
        yield client
    finally:
        await client.close()


def streams_of(config: NatsBackendConfig) -> list[str]:
    return [spec.name for spec in resources(config)]


async def delete_streams_of(config: NatsBackendConfig) -> None:
    async with raw_nats(config.nats_url) as client:
        for name in streams_of(config):
            with suppress(NotFoundError):
                await client.jetstream().delete_stream(name)


async def messages_in(config: NatsBackendConfig, stream: str) -> int:
    async with raw_nats(config.nats_url) as client:
        info = await client.jetstream().stream_info(stream)
        count: int = info.state.messages
        return count


async def jobs_waiting(config: NatsBackendConfig) -> int:
    """Jobs that are not acknowledged yet: a work queue forgets the others."""
    return await messages_in(config, config.work_stream)


async def dead_letters(config: NatsBackendConfig) -> list[tuple[str, dict[str, Any]]]:
    """Subject and content of every record of the dead letter stream."""
    async with raw_nats(config.nats_url) as client:
        stream = client.jetstream()
        last = (await stream.stream_info(config.dlq_stream)).state.last_seq
        messages = [await stream.get_msg(config.dlq_stream, seq) for seq in range(1, last + 1)]
        return [(message.subject, msgspec.json.decode(message.data)) for message in messages]


async def put_message(
    config: NatsBackendConfig, payload: bytes, tag: str = "default", headers: dict[str, str] | None = None
) -> None:
    """A message on the work queue, as a producer of another make would put it."""
    async with raw_nats(config.nats_url) as client:
        await client.jetstream().publish(f"{config.work_subject_prefix}.{tag}", payload, headers=headers)


async def stored_run(config: NatsBackendConfig, run_id: str) -> dict[str, Any] | None:
    """The bytes of the bucket, read as any NATS client would."""
    async with raw_nats(config.nats_url) as client:
        bucket = await client.jetstream().key_value(config.runs_kv_bucket)
        try:
            entry = await bucket.get(run_id)
        except NotFoundError:
            return None
        found: dict[str, Any] = msgspec.json.decode(entry.value)
        return found
