"""Consumers that read along: nothing is acknowledged, and a gateway that is killed leaves none behind."""

from typing import Any

from pyoco_server.jetstream.connection import ApiError, NatsConnection
from pyoco_server.jetstream.streams import CONSUMER_NOT_FOUND, NANOSECONDS
from pyoco_server.usecases.ports import Revision

INACTIVE_SEC = 60.0
"""The server removes a consumer that nobody asked for so long."""


async def create_reader(
    connection: NatsConnection,
    stream: str,
    subject: str,
    *,
    name: str | None = None,
    deliver_policy: str = "last_per_subject",
    after: Revision | None = None,
) -> dict[str, Any]:
    """Its name (the server's choice if none is given) and `num_pending`: how much there is to read.

    `after`: of all that was stored, only what is behind this.
    """
    config: dict[str, Any] = {
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(INACTIVE_SEC * NANOSECONDS),
        "deliver_policy": deliver_policy,
        "filter_subject": subject,
    }
    if after is not None:
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
    if name is None:
        return await connection.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
    return await connection.api(
        f"CONSUMER.CREATE.{stream}.{name}.{subject}",
        {"stream_name": stream, "config": {**config, "name": name}, "action": "create"},
    )


async def delete_reader(connection: NatsConnection, stream: str, name: str) -> None:
    """Fine if it is gone."""
    try:
        await connection.api(f"CONSUMER.DELETE.{stream}.{name}")
    except ApiError as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise
