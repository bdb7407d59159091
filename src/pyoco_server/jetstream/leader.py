"""Reads that the leader of a stream answers: what it does not have is not there."""

import base64

from msgspec import Struct

from pyoco_server.jetstream.connection import ApiError, NatsConnection

NO_MESSAGE = 10037


class StoredMessage(Struct, frozen=True):
    sequence: int
    subject: str
    data: bytes


async def next_of_leader(
    connection: NatsConnection, stream: str, subjects: str, after: int
) -> StoredMessage | None:
    """The first message under `subjects` behind the sequence `after`."""
    wanted = {"seq": after + 1, "next_by_subj": subjects}
    try:
        answer = await connection.api(f"STREAM.MSG.GET.{stream}", wanted)
    except ApiError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    message = answer["message"]
    return StoredMessage(message["seq"], message["subject"], base64.b64decode(message.get("data", "")))
