"""Commands. Their texts are in the user's language: Japanese in a Japanese locale, else English.

Machine-readable output (JSON, option names, log fields) is the same in every language.
"""

from dataclasses import dataclass
from typing import Self

from pyoco_server.environment import language

__all__ = ["Message", "Text", "language"]


class Message(str):
    """A text in the user's language; `en` is the same in English, for JSON."""

    __slots__ = ("en",)
    en: str

    @classmethod
    def of(cls, shown: str, en: str) -> Self:
        message = cls(shown)
        message.en = en
        return message


@dataclass(frozen=True, slots=True)
class Text:
    """A message in both languages, with the same `{placeholders}`."""

    en: str
    ja: str

    def __call__(self, **values: object) -> Message:
        in_english = {k: v.en if isinstance(v, Message) else v for k, v in values.items()}
        shown = self.ja if language() == "ja" else self.en
        return Message.of(shown.format(**values), self.en.format(**in_english))
