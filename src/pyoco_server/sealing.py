"""Seals the values of secrets: XChaCha20-Poly1305 of libsodium, through PyNaCl."""

import base64
from collections.abc import Sequence
from functools import cached_property

from nacl.exceptions import CryptoError
from nacl.secret import Aead

from pyoco_server.usecases.ports.secrets import WrongKey

_FORM = "v1."
"""Before the nonce and the ciphertext, so that another form can follow."""


class Sealer:
    """The first key seals, all open."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return f"Sealer({len(self._keys)} keys)"

    @property
    def has_key(self) -> bool:
        return bool(self._keys)

    @cached_property
    def _boxes(self) -> list[Aead]:
        return [Aead(key) for key in self._keys]

    def seal(self, text: str, bound_to: bytes) -> str:
        sealed = self._boxes[0].encrypt(text.encode("utf-8", "surrogatepass"), bound_to)
        return _FORM + base64.urlsafe_b64encode(bytes(sealed)).decode()

    def open(self, sealed: str, bound_to: bytes) -> str:
        return self._opened(sealed, bound_to)[0]

    def is_current(self, sealed: str, bound_to: bytes) -> bool:
        return self._opened(sealed, bound_to)[1] == 0

    def _opened(self, sealed: str, bound_to: bytes) -> tuple[str, int]:
        """The text, and the place of the key that opened it. Raises WrongKey."""
        try:
            if not sealed.startswith(_FORM):
                raise WrongKey
            data = base64.urlsafe_b64decode(sealed.removeprefix(_FORM))
        except ValueError as error:
            raise WrongKey from error
        for place, box in enumerate(self._boxes):
            try:
                return box.decrypt(data, bound_to).decode("utf-8", "surrogatepass"), place
            except (CryptoError, ValueError):
                continue
        raise WrongKey
