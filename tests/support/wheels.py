"""Wheels made by hand: as small as they can be, and as broken as a test wants them."""

import io
import os
import zipfile
from pathlib import Path


def a_wheel(
    package: str = "my_flows",
    version: str = "0.1.0",
    *,
    files: dict[str, str] | None = None,
    metadata: str | None = None,
    without: tuple[str, ...] = (),
    entry_points: str | None = None,
) -> bytes:
    info = f"{package}-{version}.dist-info"
    content = {
        f"{package}/__init__.py": f'VERSION = "{version}"\n',
        **(files or {}),
        f"{info}/METADATA": metadata or f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if entry_points is not None:
        content[f"{info}/entry_points.txt"] = entry_points
    content[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in content) + f"{info}/RECORD,,\n"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in content.items():
            if name.rpartition("/")[2] not in without:
                # A fixed date: two wheels of the same content are the same bytes, whenever they are made.
                member = zipfile.ZipInfo(name, date_time=(2026, 1, 1, 0, 0, 0))
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, text)
    return data.getvalue()


def wheel_name(package: str = "my_flows", version: str = "0.1.0", tags: str = "py3-none-any") -> str:
    return f"{package}-{version}-{tags}.whl"


def a_wheel_file(directory: Path, package: str = "my_flows", version: str = "0.1.0", **content: str) -> Path:
    path = directory / wheel_name(package, version)
    files = {f"{package}/{name}.py": text for name, text in content.items()}
    path.write_bytes(a_wheel(package, version, files=files))
    return path


def a_large_wheel_file(directory: Path, size: int) -> Path:
    """Of random bytes: nothing on the way can make them fewer."""
    path = directory / wheel_name()
    path.write_bytes(a_wheel())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("my_flows/data.bin", os.urandom(size))
    return path
