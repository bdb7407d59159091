"""Streams to files and back, with their consumers: JetStream's own snapshots, taken while everything runs."""

import asyncio
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from nats.aio.msg import Msg

from pyoco_server.errors import IncompatibleNats, NatsUnavailable, NobodyAnswers
from pyoco_server.jetstream.connection import ApiError, ErrorInReply, NatsConnection, raise_api_error
from pyoco_server.jetstream.streams import NOT_FOUND, stream_config

CHUNK_BYTES = 128 * 1024
SILENCE_SEC = 30.0
"""A server that sends or takes chunks does not pause for so long."""
RETRY_SEC = 0.05
_NO_CONTENT = "204"


class SavedStream(msgspec.Struct, frozen=True):
    """What JetStream says of a stream, and wants to hear again when it is restored."""

    config: dict[str, Any]
    state: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.config["name"])

    @property
    def messages(self) -> int:
        return int(self.state["messages"])


async def save_stream(connection: NatsConnection, name: str, directory: Path) -> SavedStream | None:
    """None if there is no such stream. What it is comes last: without it a file is no backup."""
    chunks: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = connection.new_inbox()
    stop = await connection.listen(inbox, chunks.put)
    try:
        answer = await _snapshot(connection, name, inbox)
        if answer is None:
            return None
        with _content(directory, name).open("wb") as file:
            await _receive(connection, chunks, file)
    finally:
        await stop()
    saved = msgspec.convert(answer, SavedStream)
    _description(directory, name).write_bytes(msgspec.json.encode(saved))
    return saved


async def _snapshot(connection: NatsConnection, name: str, inbox: str) -> dict[str, Any] | None:
    body = {"deliver_subject": inbox, "chunk_size": CHUNK_BYTES}
    try:
        return await connection.api(f"STREAM.SNAPSHOT.{name}", body)
    except ApiError as error:
        if error.err_code == NOT_FOUND:
            return None
        raise


async def _receive(connection: NatsConnection, chunks: "asyncio.Queue[Msg]", file: BinaryIO) -> None:
    """The server sends more when chunks that ask for it are acknowledged; one without content is the end."""
    while True:
        try:
            async with asyncio.timeout(SILENCE_SEC):
                chunk = await chunks.get()
        except TimeoutError as error:
            raise NatsUnavailable(
                "nats unavailable: the snapshot of a stream stopped in its middle"
            ) from error
        if not chunk.data:
            _check_end(chunk)
            return
        file.write(chunk.data)
        if chunk.reply:
            await connection.publish(chunk.reply, b"")


def _check_end(chunk: Msg) -> None:
    headers = chunk.headers or {}
    status = headers.get("Status", _NO_CONTENT)
    if status != _NO_CONTENT:
        raise NatsUnavailable(f"nats unavailable: snapshot: {status} {headers.get('Description', '')}")


def saved_streams(directory: Path) -> list[SavedStream]:
    """What a backup has, by name; a file without a description was cut off and is none."""
    return [
        msgspec.json.decode(path.read_bytes(), type=SavedStream)
        for path in sorted(directory.glob("*.stream.json"))
    ]


async def require_absent(connection: NatsConnection, streams: list[SavedStream]) -> None:
    """Raises IncompatibleNats: a backup never overwrites anything, nor is half of one restored."""
    taken = [stream.name for stream in streams if await stream_config(connection, stream.name) is not None]
    if taken:
        raise IncompatibleNats(
            f"there is {', '.join(taken)} already: restore into a NATS that has none of these streams, "
            "before any gateway or worker is started"
        )


async def restore_stream(
    connection: NatsConnection, saved: SavedStream, directory: Path, replicas: int
) -> None:
    body = {"config": {**saved.config, "num_replicas": replicas}, "state": saved.state}
    answer = await connection.api(f"STREAM.RESTORE.{saved.name}", body)
    subject = answer["deliver_subject"]
    with _content(directory, saved.name).open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            await _send(connection, subject, chunk)
    await _send(connection, subject, b"")


async def _send(connection: NatsConnection, subject: str, chunk: bytes) -> None:
    """In a cluster the node that restores may be another than ours, which learns a moment later of it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SILENCE_SEC
    while True:
        try:
            reply = await connection.request(subject, chunk, patience=SILENCE_SEC)
        except NobodyAnswers:
            if loop.time() > deadline:
                raise
            await asyncio.sleep(RETRY_SEC)
        else:
            return _check_taken(reply)


def _check_taken(reply: Msg) -> None:
    error = msgspec.json.decode(reply.data).get("error") if reply.data else None
    if error is not None:
        raise_api_error(msgspec.convert(error, ErrorInReply))


def _content(directory: Path, name: str) -> Path:
    return directory / f"{name}.stream"


def _description(directory: Path, name: str) -> Path:
    return directory / f"{name}.stream.json"
