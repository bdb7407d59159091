"""The environment of this process: the user's language, secrets in variables or files, its own machine."""

import base64
import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from pyoco_server.errors import ConfigError

_LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")
"""In POSIX order: the first one set decides."""


def language(environ: Mapping[str, str] = os.environ) -> Literal["en", "ja"]:
    """The user's language: Japanese in a Japanese locale, else English."""
    decisive = next((environ[name] for name in _LOCALE_VARIABLES if environ.get(name)), "")
    return "ja" if decisive.partition("_")[0].partition(".")[0].lower() == "ja" else "en"


def secret_variable(key: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The text of a secret: that of its variable, or that of the file which `<key>_FILE` names.

    One newline at the end of the file is not part of it. Raises ConfigError, which never contains the text.
    """
    text, path = environ.get(key, "").strip(), environ.get(f"{key}_FILE", "").strip()
    if not path:
        return text or None
    if text:
        raise ConfigError([f"{key} and {key}_FILE are both set; remove one of them"])
    try:
        content = re.sub(rb"\r?\n\Z", b"", Path(path).read_bytes())
    except OSError as error:
        raise ConfigError([f"{key}_FILE={path!r}: cannot be read ({error.strerror})"]) from error
    if not content:  # an empty token or pepper would switch the protection off
        raise ConfigError([f"{key}_FILE={path!r}: the file is empty"])
    return os.fsdecode(content)


KEY_BYTES = 32


def keys_in(text: str) -> tuple[bytes, ...] | None:
    """The keys in the text of a secret, comma separated. None: one of them is not base64url of 32 bytes."""
    try:
        keys = tuple(
            base64.b64decode(one + "=" * (-len(one) % 4), altchars=b"-_", validate=True)
            for one in (part.strip().rstrip("=") for part in text.split(","))
            if text.strip()
        )
    except ValueError:
        return None
    return keys if all(len(key) == KEY_BYTES for key in keys) else None


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
