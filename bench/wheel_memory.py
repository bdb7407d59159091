"""What a large wheel costs the gateway in memory: its chunks under way, not its size."""

import argparse
import hashlib
import os
import tempfile
import time
import zipfile
from pathlib import Path

from installation import installation
from page import Figures, Goal, show, table
from pyoco_server.http_client import PyocoHttpClient

GOAL_MB = 50.0
CHUNK = 1024 * 1024
NAME = "big_flows-1.0-py3-none-any.whl"
INFO = "big_flows-1.0.dist-info"


def make_wheel(directory: Path, megabytes: int) -> Path:
    """Random bytes, stored as they are: nothing on the way can make them fewer."""
    path = directory / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("big_flows/data.bin", "w", force_zip64=True) as member:
            for _ in range(megabytes):
                member.write(os.urandom(CHUNK))
        archive.writestr(f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: big_flows\nVersion: 1.0\n")
        archive.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{INFO}/RECORD", "")
    return path


def peak_mb(pid: int) -> float:
    """The most memory that the process ever had."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) / 1024


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(megabytes: int) -> Figures:
    with (
        tempfile.TemporaryDirectory() as directory,
        installation("fast") as whole,
        PyocoHttpClient(whole.url) as client,
    ):
        wheel = make_wheel(Path(directory), megabytes)
        pid = whole.pids["gateway"]
        client.list_wheels()  # what is imported late, or opened at the first use, is not the wheel's
        before = peak_mb(pid)

        started = time.perf_counter()
        client.upload_wheel(wheel)
        uploaded, upload_sec = peak_mb(pid), time.perf_counter() - started

        started = time.perf_counter()
        (Path(directory) / "got").mkdir()
        got = client.download_wheel(wheel.name, Path(directory) / "got")
        downloaded, download_sec = peak_mb(pid), time.perf_counter() - started
        assert sha256(got) == sha256(wheel)

    rows = [
        ("before", f"{before:.0f} MB", ""),
        ("after the upload", f"{uploaded:.0f} MB", f"{megabytes / upload_sec:.0f} MB/s"),
        ("after the download", f"{downloaded:.0f} MB", f"{megabytes / download_sec:.0f} MB/s"),
    ]
    growth = downloaded - before
    what = f"gateway's memory for a wheel of {megabytes} MB"
    goal = Goal(what, f"< {GOAL_MB:g} MB", f"{growth:.1f} MB", growth < GOAL_MB)
    return Figures(table((f"a wheel of {megabytes} MB", "gateway's peak memory", ""), rows), [goal])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    show(measure(parser.parse_args().megabytes))


if __name__ == "__main__":
    main()
