"""On which Pythons and platforms a wheel can be installed: what its name and its metadata allow."""

from collections.abc import Collection

from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags

from pyoco_server.errors import InvalidRequest

OLDEST_MINOR = 11
"""Of Python 3: the oldest that the product runs on."""
NEWEST_MINOR = 40
"""Far enough ahead: a wheel for a Python that comes later is not refused."""
_UNSUPPORTED = "win"
"""Platforms on which there are no workers."""


class Fit(Struct, frozen=True):
    minors: tuple[int, ...]
    """Of Python 3; empty: no worker can ever install it."""
    platforms: tuple[str, ...]
    """Empty: any."""

    @property
    def is_everywhere(self) -> bool:
        return not self.platforms and self.minors == _ALL_MINORS

    @property
    def pythons(self) -> str:
        """`3.11`, or `3.11, 3.12`, or `3.12+`."""
        if self.minors[-1] == NEWEST_MINOR:
            return f"3.{self.minors[0]}+"
        return ", ".join(f"3.{minor}" for minor in self.minors)


_ALL_MINORS = tuple(range(OLDEST_MINOR, NEWEST_MINOR + 1))


def fit_of(tags: Collection[Tag], requires_python: str = "") -> Fit:
    """Raises InvalidRequest for a Requires-Python that nobody can read."""
    usable = {tag for tag in tags if not tag.platform.startswith(_UNSUPPORTED)}
    platforms = {tag.platform for tag in usable}
    minors = tuple(
        minor
        for minor in _ALL_MINORS
        if _installable(minor, platforms) & usable and _is_allowed(minor, requires_python)
    )
    return Fit(minors, () if "any" in platforms else tuple(sorted(platforms)))


def _installable(minor: int, platforms: set[str]) -> set[Tag]:
    """What a CPython of this version installs; those without a GIL have an ABI of their own."""
    version, interpreter, named = (3, minor), f"cp3{minor}", sorted(platforms)
    abis = [interpreter, f"{interpreter}t"]
    return {
        *cpython_tags(version, abis, named),
        *compatible_tags(version, interpreter, named),
    }


def _is_allowed(minor: int, requires_python: str) -> bool:
    """A limit within a minor version (`>=3.11.4`) leaves some of it."""
    try:
        allowed = SpecifierSet(requires_python)
    except InvalidSpecifier as error:
        raise InvalidRequest(f"METADATA: Requires-Python {requires_python!r} cannot be read") from error
    return any(allowed.contains(f"3.{minor}.{patch}", prereleases=True) for patch in (0, 99))
