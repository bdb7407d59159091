"""Wheels: valid names and files, version order, selection for a worker, compatibility, and sync plans."""

import base64
import re
import struct
import zipfile
from collections.abc import Collection, Iterable, Sequence
from email.parser import BytesHeaderParser
from enum import StrEnum
from pathlib import PurePosixPath
from typing import BinaryIO

from msgspec import Struct
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from pyoco_server.domain.inputs import MAX_TAGS, is_tag
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
    """The parts of a wheel's file name."""

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
    """Origin of a request: the socket's address is verified, the other fields are the client's claims."""

    remote_addr: str | None = None
    x_forwarded_for: str | None = None
    x_real_ip: str | None = None
    user_agent: str | None = None
    host: str | None = None
    scheme: str | None = None


class WheelEvent(Struct, frozen=True, kw_only=True):
    """One entry of the wheel history."""

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
    """Raises InvalidRequest for an invalid wheel name."""
    if len(name) > MAX_NAME or "/" in name or "\\" in name or not name.isprintable():
        raise InvalidRequest(f"wheel name {name[:80]!r} is not a file name")
    try:
        package, version, _, tags = parse_wheel_filename(name)
    except (InvalidWheelFilename, ValueError) as error:
        raise InvalidRequest(f"{name!r} is not a valid wheel name: {error}") from error
    return WheelName(package, version, tags)


def is_wheel_name(name: str) -> bool:
    try:
        read_name(name)
    except InvalidRequest:
        return False
    return True


def read_tags(text: str) -> tuple[str, ...]:
    """Tags from `cpu, linux`, without duplicates, in order."""
    tags = tuple(dict.fromkeys(tag.strip() for tag in text.split(",") if tag.strip()))
    if len(tags) > MAX_TAGS:
        raise InvalidRequest(f"tags: at most {MAX_TAGS} tags are allowed, got {len(tags)}")
    for tag in tags:
        if not is_tag(tag):
            raise InvalidRequest(f"tags: {tag!r} must match [A-Za-z0-9_-]{{1,64}}, e.g. tags=cpu,linux")
    return tags


def check_version(new: WheelName, registered: Iterable[Wheel]) -> None:
    """Versions only increase, so that a worker never gets other code under the same or a lower version."""
    known = [wheel for wheel in registered if is_wheel_name(wheel.name)]
    versions = [name.version for name in map(_name_of, known) if name.package == new.package]
    newest = max(versions, default=None)
    if newest is not None and new.version <= newest:
        raise WheelVersionConflict(
            f"{new.package} {new.version} is not newer than the registered {newest}; raise the version"
        )


class Selection(Struct, frozen=True):
    wheels: list[Wheel]
    """One per package, the newest compatible version."""
    skipped: list[tuple[Wheel, str]]
    """Wheels with matching tags that cannot be used, and the reason."""


def select(registered: Iterable[Wheel], worker_tags: Collection[str], supported: Sequence[Tag]) -> Selection:
    """The wheels for a worker: the newest compatible wheel of each package with a matching tag."""
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


# Compatible Python versions and platforms of a wheel

OLDEST_MINOR = 11
"""The oldest supported minor version of Python 3."""
NEWEST_MINOR = 40
"""High enough not to refuse wheels for future Python versions."""
_UNSUPPORTED = "win"
"""Prefix of platforms without workers."""


class Fit(Struct, frozen=True):
    minors: tuple[int, ...]
    """Minor versions of Python 3; empty: not installable on any worker."""
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
    """Raises InvalidRequest for an invalid Requires-Python."""
    usable = {tag for tag in tags if not tag.platform.startswith(_UNSUPPORTED)}
    platforms = {tag.platform for tag in usable}
    minors = tuple(
        minor
        for minor in _ALL_MINORS
        if _installable(minor, platforms) & usable and _is_allowed(minor, requires_python)
    )
    return Fit(minors, () if "any" in platforms else tuple(sorted(platforms)))


def _installable(minor: int, platforms: set[str]) -> set[Tag]:
    """The tags that a CPython of this version installs; free-threaded builds have their own ABI."""
    version, interpreter, named = (3, minor), f"cp3{minor}", sorted(platforms)
    abis = [interpreter, f"{interpreter}t"]
    return {
        *cpython_tags(version, abis, named),
        *compatible_tags(version, interpreter, named),
    }


def _is_allowed(minor: int, requires_python: str) -> bool:
    """A limit within a minor version (`>=3.11.4`) still allows that version."""
    try:
        allowed = SpecifierSet(requires_python)
    except InvalidSpecifier as error:
        raise InvalidRequest(f"METADATA: invalid Requires-Python {requires_python!r}") from error
    return any(allowed.contains(f"3.{minor}.{patch}", prereleases=True) for patch in (0, 99))


# Wheel sync of a worker


class SyncResult(StrEnum):
    DISABLED = "disabled"
    IDLE = "idle"
    """No change was needed."""
    OK = "ok"
    ERROR = "error"


class InstalledWheel(Struct, frozen=True, kw_only=True):
    """An installed wheel of a worker; it identifies the code of a run."""

    name: str
    package: str
    version: str
    nuid: str
    sha256_hex: str | None


class SkippedWheel(Struct, frozen=True):
    name: str
    reason: str


class WheelSync(Struct, frozen=True, kw_only=True):
    """The last sync, as shown in the worker's record."""

    enabled: bool = False
    last_result: SyncResult = SyncResult.DISABLED
    last_attempt_at: float | None = None
    last_success_at: float | None = None
    last_synced_at: float | None = None
    """Time of the last change."""
    selected_count: int = 0
    updated_count: int = 0
    removed_count: int = 0
    skipped_incompatible_count: int = 0
    selected_wheels: tuple[str, ...] = ()
    updated_wheels: tuple[str, ...] = ()
    removed_wheels: tuple[str, ...] = ()
    skipped_incompatible: tuple[SkippedWheel, ...] = ()
    installed_wheels: tuple[InstalledWheel, ...] = ()
    error: str | None = None


class Plan(Struct, frozen=True):
    install: list[Wheel]
    keep: list[InstalledWheel]
    """Selected wheels that are installed with the same content."""
    drop: list[InstalledWheel]


def plan(selected: Sequence[Wheel], active: Sequence[InstalledWheel]) -> Plan:
    """By content, not name: a wheel uploaded again has another nuid."""
    wanted = {wheel.nuid for wheel in selected}
    installed = {wheel.nuid for wheel in active}
    return Plan(
        install=[wheel for wheel in selected if wheel.nuid not in installed],
        keep=[wheel for wheel in active if wheel.nuid in wanted],
        drop=[wheel for wheel in active if wheel.nuid not in wanted],
    )


def described(wheel: Wheel) -> InstalledWheel:
    name = read_name(wheel.name)
    return InstalledWheel(
        name=wheel.name,
        package=name.package,
        version=str(name.version),
        nuid=wheel.nuid,
        sha256_hex=wheel.sha256_hex,
    )


def after_failures(
    planned: Plan, installed: Sequence[InstalledWheel], failed: Sequence[Wheel]
) -> list[InstalledWheel]:
    """The wheels to run with; where an installation failed, the old version stays."""
    lacking = {described(wheel).package for wheel in failed}
    rescued = [wheel for wheel in planned.drop if wheel.package in lacking]
    return sorted([*planned.keep, *installed, *rescued], key=lambda wheel: wheel.name)


# Validation of a wheel file by its zip directory, without unpacking.

MAX_MEMBERS = 20_000
MAX_DIRECTORY_BYTES = 8 * 1024 * 1024
"""Limit of the zip directory in bytes, because its member count is not reliable."""
MAX_METADATA_BYTES = 1024 * 1024
MAX_GROWTH = 50
"""Maximum ratio of unpacked to packed size; code compresses to a quarter, seldom to a tenth."""
FREE_BYTES = 64 * 1024 * 1024
"""Allowed unpacked size of small wheels."""

_END_OF_DIRECTORY = b"PK\x05\x06"
_END_SIZE = 22
_MAX_COMMENT = 65_535
_SYMLINK = 0o120000
_FILE_TYPE = 0o170000
_DRIVE = re.compile(r"^[A-Za-z]:")
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


class WheelContent(Struct, frozen=True):
    """Metadata of a wheel beside its name."""

    requires_python: str
    entry_points: str
    """The text of entry_points.txt; empty if missing."""
    members: frozenset[str]


def check_wheel(name: str, file: BinaryIO, size: int) -> WheelName:
    """Raises InvalidRequest with the reason. Unpacks only the metadata."""
    expected = read_name(name)
    _check_member_count(file, size)
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            _check_members(members)
            _check_growth(members, size)
            _check_metadata(archive, members, expected)
    except (zipfile.BadZipFile, struct.error, NotImplementedError, ValueError, EOFError, OSError) as error:
        raise InvalidRequest(f"{name}: not a readable zip archive ({error})") from error
    return expected


def read_content(file: BinaryIO) -> WheelContent:
    """The content of a checked file."""
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        metadata = next(name for name in members if _METADATA.fullmatch(name))
        beside = f"{PurePosixPath(metadata).parent}/entry_points.txt"
        return WheelContent(
            str(BytesHeaderParser().parsebytes(archive.read(metadata)).get("Requires-Python", "")),
            _text(archive, members[beside]) if beside in members else "",
            frozenset(members),
        )


def _text(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    if member.file_size > MAX_METADATA_BYTES:
        raise InvalidRequest(f"the wheel's {member.filename} is too large")
    return archive.read(member).decode(errors="replace")


def _check_member_count(file: BinaryIO, size: int) -> None:
    """Check the size of the directory before reading it, because each entry takes memory."""
    tail_size = min(size, _END_SIZE + _MAX_COMMENT)
    file.seek(size - tail_size)
    tail = file.read(tail_size)
    at = tail.rfind(_END_OF_DIRECTORY)
    if at < 0 or len(tail) - at < _END_SIZE:
        raise InvalidRequest("not a wheel: the file is not a zip archive")
    count, directory_size = struct.unpack_from("<HI", tail, at + 10)
    if count > MAX_MEMBERS or directory_size > MAX_DIRECTORY_BYTES:
        raise InvalidRequest(f"the wheel has too many members; at most {MAX_MEMBERS:,} are allowed")
    file.seek(0)


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    if len(members) > MAX_MEMBERS:
        raise InvalidRequest(f"the wheel has {len(members):,} members; at most {MAX_MEMBERS:,} are allowed")
    seen: set[str] = set()
    for member in members:
        path = PurePosixPath(member.filename)
        if (
            path.is_absolute()
            or ".." in path.parts
            or "\\" in member.filename
            or _DRIVE.match(member.filename)
        ):
            raise InvalidRequest(f"the wheel has a member with an unsafe path: {member.filename[:200]!r}")
        if (member.external_attr >> 16) & _FILE_TYPE == _SYMLINK:
            raise InvalidRequest(f"the wheel has a symbolic link: {member.filename[:200]!r}")
        if str(path) in seen:
            raise InvalidRequest(f"the wheel has a duplicate member: {member.filename[:200]!r}")
        seen.add(str(path))


def _check_growth(members: list[zipfile.ZipInfo], size: int) -> None:
    unpacked = sum(member.file_size for member in members)
    allowed = max(FREE_BYTES, MAX_GROWTH * size)
    if unpacked > allowed:
        raise InvalidRequest(f"the wheel unpacks to {unpacked:,} bytes; at most {allowed:,} are allowed")


def _check_metadata(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], expected: WheelName) -> None:
    found = [m for m in members if _METADATA.fullmatch(m.filename)]
    if len(found) != 1:
        raise InvalidRequest(f"the wheel has {len(found)} *.dist-info/METADATA files; it must have one")
    for needed in ("WHEEL", "RECORD"):
        path = f"{PurePosixPath(found[0].filename).parent}/{needed}"
        if path not in archive.namelist():
            raise InvalidRequest(f"the wheel has no {path}")
    if found[0].file_size > MAX_METADATA_BYTES:
        raise InvalidRequest("the wheel's METADATA is too large")
    headers = BytesHeaderParser().parsebytes(archive.read(found[0]))
    name, version = str(headers.get("Name", "")), str(headers.get("Version", ""))
    try:
        is_same = canonicalize_name(name) == expected.package and Version(version) == expected.version
    except InvalidVersion:
        is_same = False
    if not is_same:
        raise InvalidRequest(
            f"METADATA says {name!r} {version!r}, the file name says {expected.package} {expected.version}"
        )
