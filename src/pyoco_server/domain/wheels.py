"""Wheels: which file may be registered, which version may follow which, and which a worker takes."""

import base64
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, NormalizedName, parse_wheel_filename
from packaging.version import Version

from pyoco_server.domain.names import MAX_TAGS, is_tag
from pyoco_server.errors import InvalidRequest, WheelVersionConflict

MAX_NAME = 255


class Wheel(Struct, frozen=True, kw_only=True):
    """A registered wheel."""

    name: str
    size_bytes: int
    bucket: str
    nuid: str
    modified: float
    sha256: bytes | None
    tags: tuple[str, ...] = ()

    @property
    def sha256_hex(self) -> str | None:
        return None if self.sha256 is None else self.sha256.hex()

    @property
    def sha256_b64(self) -> str | None:
        return None if self.sha256 is None else base64.urlsafe_b64encode(self.sha256).decode()


class WheelName(Struct, frozen=True):
    """What a file name says of its wheel."""

    package: NormalizedName
    version: Version
    tags: frozenset[Tag]


class WheelAction(StrEnum):
    UPLOAD = "upload"
    DELETE = "delete"


class Actor(Struct, frozen=True, kw_only=True):
    tenant_id: str | None = None
    api_key_id: str | None = None


class Source(Struct, frozen=True, kw_only=True):
    """Where a request came from: the socket's address is known, the rest is what the client claimed."""

    remote_addr: str | None = None
    x_forwarded_for: str | None = None
    x_real_ip: str | None = None
    user_agent: str | None = None
    host: str | None = None
    scheme: str | None = None


class WheelEvent(Struct, frozen=True, kw_only=True):
    """One line of the history: who registered or removed which wheel."""

    event_id: str
    occurred_at: float
    action: WheelAction
    wheel_name: str
    tags: tuple[str, ...]
    size_bytes: int | None
    sha256_hex: str | None
    replace: bool | None
    actor: Actor
    source: Source


def read_name(name: str) -> WheelName:
    """Raises InvalidRequest for anything that is not the name of a wheel."""
    if len(name) > MAX_NAME or "/" in name or "\\" in name or not name.isprintable():
        raise InvalidRequest(f"wheel name {name[:80]!r} is not a file name")
    try:
        package, version, _, tags = parse_wheel_filename(name)
    except (InvalidWheelFilename, ValueError) as error:
        raise InvalidRequest(f"{name!r} is not the name of a wheel: {error}") from error
    return WheelName(package, version, tags)


def is_wheel_name(name: str) -> bool:
    try:
        read_name(name)
    except InvalidRequest:
        return False
    return True


def read_tags(text: str) -> tuple[str, ...]:
    """From `cpu, linux`; each once, in their order."""
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split(",") if tag.strip()))
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"tags: at most {MAX_TAGS} tags are allowed, got {len(tags)}")
    for tag in tags:
        if not is_tag(tag):
            raise InvalidRequest(f"tags: {tag!r} must match [A-Za-z0-9_-]{{1,64}}, e.g. tags=cpu,linux")
    return tags


def check_version(new: WheelName, registered: Iterable[Wheel]) -> None:
    """Only upwards: a worker that has a version must never find other code under the same or a lower one."""
    known = [wheel for wheel in registered if is_wheel_name(wheel.name)]
    versions = [name.version for name in map(_name_of, known) if name.package == new.package]
    newest = max(versions, default=None)
    if newest is not None and new.version <= newest:
        raise WheelVersionConflict(
            f"{new.package} {new.version} is not newer than {newest}, which is registered: raise the version"
        )


class Selection(Struct, frozen=True):
    wheels: list[Wheel]
    """One per package, the newest that runs here."""
    skipped: list[tuple[Wheel, str]]
    """What has the right tags and cannot be used, and why."""


def select(registered: Iterable[Wheel], worker_tags: Collection[str], supported: Sequence[Tag]) -> Selection:
    """What a worker should have: the newest compatible wheel of each package that is meant for it."""
    chosen: dict[str, tuple[Version, Wheel]] = {}
    skipped = []
    can_run = frozenset(supported)
    for wheel in registered:
        if wheel.tags and not set(wheel.tags) & set(worker_tags):
            continue
        try:
            name = read_name(wheel.name)
        except InvalidRequest as error:
            skipped.append((wheel, error.detail))
            continue
        if not name.tags & can_run:
            skipped.append((wheel, "not built for this Python or platform"))
        elif name.package not in chosen or chosen[name.package][0] < name.version:
            chosen[name.package] = (name.version, wheel)
    wheels = sorted((wheel for _, wheel in chosen.values()), key=lambda wheel: wheel.name)
    return Selection(wheels, skipped)


def _name_of(wheel: Wheel) -> WheelName:
    return read_name(wheel.name)
