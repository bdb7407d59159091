"""Texts in the language of the person at the terminal: Japanese where the locale says so, else English.

What programs read (JSON, names of options, fields of log lines) is the same in every language.
"""

from dataclasses import dataclass
from typing import Self

from pyoco_server.config import language

__all__ = ["Message", "Text", "language"]


class Message(str):
    """In the reader's language; `en` is for programs."""

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
