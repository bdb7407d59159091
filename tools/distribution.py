"""`python -m tools.distribution dist`: check what `make dist` has made, and write SHA256SUMS.

Nothing in it may name the machine it was made on, or the registries that the machine uses.
"""

import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from tools.dependencies import ROOT, declared, project

PAGE = "pyoco_server/http_api/static/index.html"
OUR_TREES = ("tests/", "bench/", "chaos/", "tools/", "web/test/", "web/node_modules/", ".github/")
"""What is for developers of the product alone."""
SERVER_PARTS = tuple(f"pyoco_server/{part}/" for part in ("http_api", "jetstream", "engine", "wiring"))
REGISTRIES = tuple(
    f"{name}.{end}" for name in ("pypi", "pythonhosted", "npmjs", "yarnpkg") for end in ("org", "com")
)
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
SBOMS = ("sbom-python.cdx.json", "sbom-dashboard.cdx.json")
OTHERS = ("openapi.json", "openapi.ts", *SBOMS)
CHECKSUMS = "SHA256SUMS"

Files = dict[str, bytes]


def files_of(archive: Path) -> Files:
    """By name; those of an sdist without its top directory."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        members = [member for member in sdist.getmembers() if member.isfile()]
        return {member.name.partition("/")[2]: _content(sdist, member) for member in members}


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = archive.extractfile(member)
    assert opened is not None
    return opened.read()


def problems(directory: Path, private: Iterable[str]) -> Iterator[str]:
    """`private`: texts that may be in no file."""
    kinds = ("pyoco_server-*.whl", "pyoco_server-*.tar.gz", "pyoco_client-*.whl")
    archives = [sorted(directory.glob(kind)) for kind in kinds]
    if any(len(found) != 1 for found in archives):
        yield f"one of each is expected: {', '.join(kinds)}"
        return
    (wheel,), (sdist,), (client,) = archives
    yield from (f"{name} is missing" for name in OTHERS if not (directory / name).is_file())
    forbidden = re.compile("|".join(map(re.escape, private)).encode())
    for archive, prefix in ((wheel, ""), (sdist, "src/")):
        files = files_of(archive)
        found = [*contents(files, prefix), *metadata(files), *named(files, forbidden)]
        yield from (f"{archive.name}: {problem}" for problem in found)
    files = files_of(client)
    yield from (f"{client.name}: {problem}" for problem in [*of_client(files), *named(files, forbidden)])
    loose = {name: (directory / name).read_bytes() for name in OTHERS if (directory / name).is_file()}
    yield from named(loose, forbidden)


def contents(files: Files, prefix: str) -> Iterator[str]:
    if prefix + PAGE not in files:
        yield f"no dashboard ({prefix}{PAGE})"
    page = files.get(prefix + PAGE, b"").decode()
    for asset in re.findall(r'"/static/([^"]+)"', page):
        if f"{prefix}pyoco_server/http_api/static/{asset}" not in files:
            yield f"the dashboard lacks {asset}"
    yield from (f"{name} does not belong into it" for name in files if name.startswith(OUR_TREES))
    if not any(Path(name).name == "LICENSE" for name in files):
        yield "no LICENSE"


def of_client(files: Files) -> Iterator[str]:
    yield from (f"{name} is a part of the server" for name in files if name.startswith(SERVER_PARTS))
    if not any(Path(name).name == "LICENSE" for name in files):
        yield "no LICENSE"


def metadata(files: Files) -> Iterator[str]:
    (text,) = [
        content.decode()
        for name, content in files.items()
        if name == "PKG-INFO" or re.fullmatch(r"[^/]+\.dist-info/METADATA", name)
    ]
    found, wanted = HeaderParser().parsestr(text), project()["project"]
    expected = {
        "Name": wanted["name"],
        "Version": wanted["version"],
        "Summary": wanted["description"],
        "License-Expression": wanted["license"],
        "License-File": "LICENSE",
        "Requires-Python": wanted["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    yield from (
        f"{key}: {found[key]!r}, not {value!r}" for key, value in expected.items() if found[key] != value
    )
    required = {str(Requirement(text)) for text in found.get_all("Requires-Dist", [])}
    yield from (
        f"Requires-Dist: {one}, not in one of the two" for one in sorted(required ^ set(requirements()))
    )


def requirements() -> Iterator[str]:
    """The dependencies in pyproject.toml, as metadata has them: those of extras with a marker."""
    yield from map(str, declared())
    extras: dict[str, list[str]] = project()["project"]["optional-dependencies"]
    for extra, texts in extras.items():
        yield from (str(Requirement(f"{text}; extra == '{extra}'")) for text in texts)


def named(files: Files, forbidden: re.Pattern[bytes]) -> Iterator[str]:
    for name, content in files.items():
        for hit in sorted(set(forbidden.findall(content))):
            yield f"{name} contains {hit.decode()!r}"


def private_texts() -> set[str]:
    """Paths of this machine, and hosts of the registries: the usual ones, and those this machine uses."""
    places = {f"{place}/" for place in (ROOT, Path.home()) if place != Path("/")}
    return {*places, *REGISTRIES, *configured_hosts()}


def configured_hosts() -> set[str]:
    pip = [sys.executable, "-m", "pip", "config", "list"]
    told = [
        subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
        for command in (pip, ["npm", "config", "get", "registry"])
    ]
    hosts = {urlsplit(url).hostname for url in re.findall(r"https?://[^\s'\",]+", "\n".join(told))}
    return {host for host in hosts if host is not None and host not in LOOPBACK}


def strip_registries(path: Path) -> None:
    """An SBOM names packages by purl and hash; where they were downloaded from does not matter."""
    document = without_downloads(json.loads(path.read_text()))
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def without_downloads(value: Any) -> Any:
    """Without external references to distributions, at any depth."""
    if isinstance(value, list):
        return [without_downloads(one) for one in value if not _is_download(one)]
    if isinstance(value, dict):
        return {key: without_downloads(one) for key, one in value.items()}
    return value


def _is_download(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "distribution" and "url" in value


def write_checksums(directory: Path) -> None:
    files = sorted(path for path in directory.iterdir() if path.name != CHECKSUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / CHECKSUMS).write_text("".join(lines))


def main(directory: Path) -> int:
    for name in SBOMS:
        strip_registries(directory / name)
    found = list(problems(directory, private_texts()))
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    if found:
        return 1
    write_checksums(directory)
    print((directory / CHECKSUMS).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
