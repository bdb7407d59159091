"""Random and time-ordered things, for those who are given them as arguments."""

import secrets

from uuid_utils import uuid7

from pyoco_server.domain.api_keys import ApiKey


def new_run_id() -> str:
    """Time-ordered, so that ids of neighbouring runs stand together."""
    return str(uuid7())


def new_api_key() -> ApiKey:
    """256 random bits: what makes a fast hash of them enough."""
    return ApiKey(secrets.token_hex(12), secrets.token_urlsafe(32))


def new_salt() -> bytes:
    return secrets.token_bytes(16)
