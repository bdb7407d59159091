"""The word that somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)`, when there is something near."""
    found = get_close_matches(word, list(known), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
