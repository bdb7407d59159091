"""Dead letters, in memory."""

from pyoco_server.domain.dispositions import DeadLetter


class MemoryDeadLetters:
    def __init__(self) -> None:
        self.letters: list[tuple[str, DeadLetter]] = []

    async def publish(self, letter: DeadLetter, tag: str) -> None:
        self.letters.append((tag, letter))

    async def count(self) -> int:
        return len(self.letters)
