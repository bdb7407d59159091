"""A replica that is behind its leader, on one server: another stream that has less answers direct reads."""

from pyoco_server.jetstream.connection import NatsConnection


class Behind(NatsConnection):
    """What is asked directly of the streams with `leader` in their names, those with `follower` answer."""

    def __init__(self, url: str, leader: str, follower: str) -> None:
        super().__init__(url, "test")
        self._leader, self._follower = leader, follower
        self.is_behind = True

    async def publish(
        self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        if self.is_behind and "DIRECT.GET" in subject:
            subject = subject.replace(self._leader, self._follower)
            payload = payload.replace(self._leader.encode(), self._follower.encode())
        await super().publish(subject, payload, reply, headers)
