"""Texts in the language of the person at the terminal: Japanese where the locale says so, else English.

What programs read (JSON, log lines, names of options) is the same in every language.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Language = Literal["en", "ja"]

_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
"""As POSIX has it: the first that is set decides."""


def language(environ: Mapping[str, str] = os.environ) -> Language:
    decisive = next((environ[name] for name in _VARIABLES if environ.get(name)), "")
    return "ja" if decisive.partition("_")[0].partition(".")[0].lower() == "ja" else "en"


@dataclass(frozen=True, slots=True)
class Text:
    """A message in both languages, with the same `{placeholders}`."""

    en: str
    ja: str

    def __call__(self, **values: object) -> str:
        return (self.ja if language() == "ja" else self.en).format(**values)
