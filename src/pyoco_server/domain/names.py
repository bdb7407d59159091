"""Checks of external names before they become part of a subject, a key or a file name."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from unicodedata import category

from pyoco_server.errors import InvalidRequest

_TAG = re.compile(r"[A-Za-z0-9_-]{1,64}")
_RUN_ID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_WORKER_ID = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
MAX_TAGS = 32
MAX_LABEL = 64
LABEL_RULE = f"1 to {MAX_LABEL} characters and no control characters"
_CONTROL = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters, surrogates and line separators."""
MAX_FLOW_NAME = 200
MAX_WORKER_ID = 128


def is_tag(text: str) -> bool:
    """A tag is one token of a subject: no dots, wildcards or spaces."""
    return _TAG.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """One of a run's `tags`: a label for filtering, not part of a subject."""
    return 1 <= len(text) <= MAX_LABEL and not any(category(character) in _CONTROL for character in text)


def is_run_id(text: str) -> bool:
    """A run id is a UUID in canonical form; nothing else reaches NATS."""
    return _RUN_ID.fullmatch(text) is not None


def is_worker_id(text: str) -> bool:
    """Worker ids are bucket keys and often host names, so inner dots are allowed."""
    return len(text) <= MAX_WORKER_ID and _WORKER_ID.fullmatch(text) is not None


def require_tag(text: str) -> str:
    if not is_tag(text):
        raise InvalidRequest(f"tag {text!r} must match [A-Za-z0-9_-]{{1,64}}")
    return text


# Suggestions for misspelled words

MAX_WORD = 64
MAX_KNOWN = 1_000
"""A comparison takes some 20 µs per word, so the number is limited per request."""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` if there is a similar word, else an empty string."""
    if len(word) > MAX_WORD:
        return ""
    words = [other for other in islice(known, MAX_KNOWN) if len(other) <= MAX_WORD]
    found = get_close_matches(word, words, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""
