"""Whether a file is a wheel that may be installed: judged by its directory, before its content."""

import re
import struct
import zipfile
from email.parser import BytesHeaderParser
from pathlib import PurePosixPath
from typing import BinaryIO

from msgspec import Struct
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from pyoco_server.domain.wheels import WheelName, read_name
from pyoco_server.errors import InvalidRequest

MAX_MEMBERS = 20_000
MAX_DIRECTORY_BYTES = 8 * 1024 * 1024
"""The count of members is only claimed; how much of a directory is read is known."""
MAX_METADATA_BYTES = 1024 * 1024
MAX_GROWTH = 50
"""How many times its own size a wheel may unpack to; code compresses to a quarter, seldom to a tenth."""
FREE_BYTES = 64 * 1024 * 1024
"""So much a small wheel may unpack to in any case."""

_END_OF_DIRECTORY = b"PK\x05\x06"
_END_SIZE = 22
_MAX_COMMENT = 65_535
_SYMLINK = 0o120000
_FILE_TYPE = 0o170000
_DRIVE = re.compile(r"^[A-Za-z]:")
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


class WheelContent(Struct, frozen=True):
    """What a wheel says of itself, beside its name."""

    requires_python: str
    entry_points: str
    """The text of entry_points.txt; empty when there is none."""
    members: frozenset[str]


def check_wheel(name: str, file: BinaryIO, size: int) -> WheelName:
    """Raises InvalidRequest with the reason. Never unpacks anything but the metadata."""
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
    """Of a file that was checked."""
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
    """Before the directory is read: each entry of it costs memory."""
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
            raise InvalidRequest(f"the wheel has a member outside of it: {member.filename[:200]!r}")
        if (member.external_attr >> 16) & _FILE_TYPE == _SYMLINK:
            raise InvalidRequest(f"the wheel has a symbolic link: {member.filename[:200]!r}")
        if str(path) in seen:
            raise InvalidRequest(f"the wheel has a member twice: {member.filename[:200]!r}")
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
