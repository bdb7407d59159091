"""What an examination finds: a fact, how bad it is, and what to do about it."""

from dataclasses import dataclass
from typing import Any, Literal

from pyoco_server.cli.language import Message

Level = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class Finding:
    check: str
    level: Level
    fact: Message
    advice: Message | None = None

    def as_json(self) -> dict[str, Any]:
        """In English, wherever it is run."""
        advice = None if self.advice is None else self.advice.en
        return {"check": self.check, "level": self.level, "fact": self.fact.en, "advice": advice}
