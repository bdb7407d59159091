"""Texts in the language of the person at the terminal: Japanese where the locale says so, else English.

What programs read (JSON, log lines, names of options) is the same in every language.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

Language = Literal["en", "ja"]

_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
"""As POSIX has it: the first that is set decides."""


def language(environ: Mapping[str, str] = os.environ) -> Language:
    decisive = next((environ[name] for name in _VARIABLES if environ.get(name)), "")
    return "ja" if decisive.partition("_")[0].partition(".")[0].lower() == "ja" else "en"


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
