"""Ports of secrets and variables."""

from typing import Protocol

from pyoco_server.domain.secrets.model import SecretRecord, VariableRecord
from pyoco_server.usecases.ports.stores import Store


class WrongKey(Exception):
    """No key opens the value; or it was sealed for another name or tenant."""


class Seal(Protocol):
    """Encrypts values and authenticates what they are bound to."""

    @property
    def has_key(self) -> bool: ...
    def seal(self, text: str, bound_to: bytes) -> str:
        """Only with a key."""
        ...

    def open(self, sealed: str, bound_to: bytes) -> str:
        """Raises WrongKey."""
        ...

    def is_current(self, sealed: str, bound_to: bytes) -> bool:
        """Whether the first key opens it. Raises WrongKey."""
        ...


class SecretStores(Protocol):
    @property
    def secrets(self) -> Store[SecretRecord]: ...
    @property
    def variables(self) -> Store[VariableRecord]: ...
