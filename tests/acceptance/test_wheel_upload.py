"""REQ-0025: a wheel is judged before it is sent, and the text says what to fix."""

from pathlib import Path

import pytest

from pyoco_server.http_client import PyocoHttpClient
from support.nats_server import free_port
from support.programs import Programs, peak_memory_of
from support.wheels import a_large_wheel_file, a_wheel, wheel_name

NOWHERE = "http://127.0.0.1:1"
METADATA = "Metadata-Version: 2.1\nName: my_flows\nVersion: 0.1.0\nRequires-Python: {}\n"


def upload(programs: Programs, tags: str = "py3-none-any", data: bytes | None = None) -> str:
    """What it says on stderr."""
    file = programs.directory / wheel_name(tags=tags)
    file.write_bytes(a_wheel() if data is None else data)
    done = programs.run("pyoco-client", "wheel-upload", "--wheel-file", file.name, "--server", NOWHERE)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def entry_points(text: str) -> bytes:
    return a_wheel(entry_points=f"[pyoco.tasks]\n{text}\n")


@pytest.mark.parametrize(
    ("tags", "data", "told"),
    [
        ("py2-none-any", None, "workers run CPython 3.11 or newer on Linux or macOS"),
        ("cp310-cp310-manylinux2014_x86_64", None, "Build it for one of those"),
        ("py3-none-win_amd64", None, "on Linux or macOS"),
        ("py3-none-any", a_wheel(metadata=METADATA.format("<3.11")), "Requires-Python <3.11"),
        ("py3-none-any", a_wheel(metadata=METADATA.format("three")), "invalid Requires-Python 'three'"),
        ("py3-none-any", b"not a zip", "python -m build --wheel"),
        ("py3-none-any", a_wheel(version="2.0"), "the file name says my-flows 0.1.0"),
        ("py3-none-any", entry_points("a = 1+1"), "is not of the form module or module:function"),
        ("py3-none-any", entry_points("a = other:f"), "refers to module other, which is not in the wheel"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_sent(
    programs: Programs, tags: str, data: bytes | None, told: str
) -> None:
    said = upload(programs, tags, data)
    assert ": --wheel-file my_flows-0.1.0-" in said.splitlines()[0]
    assert told in said
    assert "no server answers" not in said


@pytest.mark.parametrize(
    ("tags", "data", "told"),
    [
        (
            "cp311-cp311-manylinux2014_x86_64",
            entry_points("double = my_flows:double"),
            "warning: only workers on CPython 3.11 and manylinux2014_x86_64 install this wheel",
        ),
        ("py312-none-any", entry_points("Double = my_flows"), "warning: only workers on CPython 3.12+"),
        ("py3-none-any", None, "note: the wheel has no entry point group pyoco.tasks"),
    ],
)
def test_what_works_on_some_workers_only_is_sent_with_a_warning(
    programs: Programs, tags: str, data: bytes | None, told: str
) -> None:
    said = upload(programs, tags, data)
    assert told in said
    assert f"ERR-PYOCO-0001 no server answers at {NOWHERE}" in said


def test_a_wheel_for_everybody_is_sent_without_a_word(programs: Programs) -> None:
    assert upload(programs, data=entry_points("double = my_flows:double")).startswith("ERR-PYOCO-0001")


@pytest.mark.slow
@pytest.mark.fresh_start
def test_a_large_wheel_passes_through_the_gateway_and_does_not_stay_in_its_memory(
    programs: Programs, tmp_path: Path
) -> None:
    """In both directions; bench/wheel_memory.py does the same with 200 MB."""
    size = 64 * 1024 * 1024
    wheel = a_large_wheel_file(tmp_path, size)
    port = free_port()
    with programs.started("pyoco-server", "up", "--port", str(port), "--durability", "fast") as up:
        up.says("Ctrl-C stops it")
        with PyocoHttpClient(f"http://127.0.0.1:{port}") as client:
            client.list_wheels()
            before = peak_memory_of(up.pid)
            client.upload_wheel(wheel)
            (tmp_path / "got").mkdir()
            got = client.download_wheel(wheel.name, tmp_path / "got")
        assert peak_memory_of(up.pid) - before < size / 4
    assert got.read_bytes() == wheel.read_bytes()
