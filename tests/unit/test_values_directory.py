"""Where large values are on their way from executors to the store."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyoco_server.worker.values import values_directory


def test_workers_that_start_at_once_leave_each_other_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def start_and_stop(_: int) -> bool:
        with values_directory() as path:
            (Path(path) / "value").touch()
            return Path(path).is_dir()

    with ThreadPoolExecutor(8) as workers:
        assert all(workers.map(start_and_stop, range(400)))
    assert list(tmp_path.iterdir()) == []
