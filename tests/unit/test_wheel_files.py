"""A9: what is not a wheel, or one that should not be unpacked, is refused with its reason."""

import io
import struct
import zipfile
from collections.abc import Callable

import pytest

from pyoco_server.domain import wheels
from pyoco_server.domain.wheels import check_wheel
from pyoco_server.errors import InvalidRequest
from support.tables import every_row
from support.wheels import a_wheel, wheel_name


def check(data: bytes, name: str = wheel_name()) -> None:
    check_wheel(name, io.BytesIO(data), len(data))


def with_member(change: Callable[[zipfile.ZipFile], None]) -> bytes:
    data = io.BytesIO(a_wheel())
    with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as archive:
        change(archive)
    return data.getvalue()


def a_link() -> zipfile.ZipInfo:
    link = zipfile.ZipInfo("my_flows/link")
    link.external_attr = 0o120777 << 16
    return link


def test_a_wheel_is_known_by_its_package_and_version() -> None:
    data = a_wheel("My_Flows", "1.0")
    found = check_wheel(wheel_name("My_Flows", "1.0"), io.BytesIO(data), len(data))
    assert (found.package, str(found.version)) == ("my-flows", "1.0")


@every_row(
    ("data", "reason"),
    [
        (b"", "not a zip archive"),
        (b"not a zip", "not a zip archive"),
        (a_wheel()[:-30], "not a zip archive"),
        (b"PK\x05\x06" + b"\xff" * 18, "members"),
        (with_member(lambda z: z.writestr("../outside.py", "x")), "with an unsafe path: '../outside.py'"),
        (with_member(lambda z: z.writestr("/etc/passwd", "x")), "with an unsafe path"),
        (with_member(lambda z: z.writestr("a\\..\\b", "x")), "with an unsafe path"),
        (with_member(lambda z: z.writestr("C:/x", "x")), "with an unsafe path"),
        (with_member(lambda z: z.writestr(a_link(), "/etc/passwd")), "symbolic link"),
        (with_member(lambda z: z.writestr("big", b"\0" * (65 * 1024 * 1024))), "unpacks to"),
        (a_wheel(without=("METADATA",)), "0 *.dist-info/METADATA"),
        (a_wheel(without=("WHEEL",)), "has no my_flows-0.1.0.dist-info/WHEEL"),
        (a_wheel(without=("RECORD",)), "RECORD"),
        (with_member(lambda z: z.writestr("x-1.dist-info/METADATA", "Name: x")), "2 *.dist-info/METADATA"),
        (a_wheel(metadata="Name: other\nVersion: 0.1.0\n"), "METADATA says 'other'"),
        (a_wheel(metadata="Name: my_flows\nVersion: 0.2.0\n"), "'0.2.0'"),
        (a_wheel(metadata="Name: my_flows\nVersion: one\n"), "'one'"),
        (a_wheel(metadata="\x00\x01"), "METADATA says"),
    ],
)
def test_a9_a_file_that_is_no_wheel_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    """ERR-PYOCO-0002"""
    with pytest.raises(InvalidRequest) as refused:
        check(data)
    assert reason in refused.value.detail


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a9_a_member_that_is_there_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="duplicate member"):
        check(with_member(lambda z: z.writestr("my_flows/__init__.py", "other")))


def test_a9_a_directory_that_claims_few_members_and_has_many_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The count in front of the directory is a claim; the directory itself is counted too."""
    monkeypatch.setattr(wheels, "MAX_MEMBERS", 5)

    def many(archive: zipfile.ZipFile) -> None:
        for number in range(10):
            archive.writestr(f"my_flows/{number}.py", "")

    data = bytearray(with_member(many))
    end = data.rfind(b"PK\x05\x06")
    struct.pack_into("<HH", data, end + 8, 3, 3)
    with pytest.raises(InvalidRequest):
        check(bytes(data))


@every_row("cut", range(0, 200, 7))
def test_a9_a_damaged_file_never_raises_anything_else(cut: int) -> None:
    data = bytearray(a_wheel())
    for index in range(cut, len(data), 97):
        data[index] ^= 0xFF
    with pytest.raises(InvalidRequest):
        check(bytes(data))
