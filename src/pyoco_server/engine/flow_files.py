"""A directory of flow files that may change while a worker runs."""

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path

from pyoco_server.engine.process_executors import ProcessExecutors
from pyoco_server.logs import get_logger

log = get_logger(__name__)

LOOK_SEC = 0.5


def version_of(directory: Path) -> str:
    """Another one whenever a file was added, removed or written; empty if it is no directory, or gone."""
    if not directory.is_dir():
        return ""
    digest = hashlib.sha256()
    try:
        for path in sorted(directory.glob("*.py")):
            with suppress(FileNotFoundError):
                stat = path.stat()
                digest.update(f"{path.name}\0{stat.st_mtime_ns}\0{stat.st_size}\0{stat.st_ino}\0".encode())
    except OSError:  # taken away while we look, or a file system of the network that has lost its server
        return ""
    return digest.hexdigest()


async def follow_flow_files(directory: Path, executors: ProcessExecutors) -> None:
    """Have the executors load the files again when they have changed. For ever."""
    seen = executors.spec.version
    while True:
        await asyncio.sleep(LOOK_SEC)
        version = await asyncio.to_thread(version_of, directory)
        if version == seen:
            continue
        seen = version
        error = await executors.change_spec(version=version)
        if error is None:
            log.info("flow files have changed; the new ones are used", action="flows.reloaded")
        else:
            log.error(
                "flow files have changed and cannot be loaded; the old ones are used",
                action="flows.unusable",
                error=error,
            )
