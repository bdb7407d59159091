"""The word that somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

MAX_WORD = 64
MAX_KNOWN = 1_000
"""Comparing costs some 20 µs per word: no request may make us compare for long."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)`, when there is something near."""
    if len(word) > MAX_WORD:
        return ""
    words = [other for other in islice(known, MAX_KNOWN) if len(other) <= MAX_WORD]
    found = get_close_matches(word, words, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
