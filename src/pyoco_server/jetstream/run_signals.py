"""Being told at once that somebody else wrote a run: a cancel should not wait for the next heartbeat."""

from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg

from pyoco_server.jetstream.connection import NatsConnection


class BucketSignals:
    """A write to a bucket is a message on its key's subject, which anybody may listen to.

    The connection does not hear itself, so all that arrives was written by others.
    """

    def __init__(self, connection: NatsConnection, bucket: str) -> None:
        self._connection = connection
        self._prefix = f"$KV.{bucket}."

    async def on_foreign_write(
        self, run_id: str, callback: Callable[[], None]
    ) -> Callable[[], Awaitable[None]]:
        async def received(_message: Msg) -> None:
            callback()

        return await self._connection.listen(self._prefix + run_id, received)
