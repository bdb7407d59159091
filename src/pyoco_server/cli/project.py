"""`pyoco-server init`: a starter project."""

from collections.abc import Iterator
from pathlib import Path

from pyoco_server.cli import language
from pyoco_server.cli import server_texts as texts
from pyoco_server.errors import InvalidCliInput

STARTER = Path(__file__).parent / "starter"
MAX_NAMES = 3


def make_project(directory: Path, *, force: bool) -> list[Path]:
    """Write the files and return their names. Raises InvalidCliInput if the directory is not empty."""
    _check(directory, force=force)
    written = []
    try:
        for source, name in _files():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            written.append(name)
    except OSError as error:
        raise InvalidCliInput(texts.CANNOT_WRITE(path=directory, reason=error.strerror)) from error
    return written


def _check(directory: Path, *, force: bool) -> None:
    if directory.exists() and not directory.is_dir():
        raise InvalidCliInput(texts.NOT_A_DIRECTORY(path=directory))
    existing = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    if existing and not force:
        more = ", …" if len(existing) > MAX_NAMES else ""
        raise InvalidCliInput(
            texts.DIRECTORY_NOT_EMPTY(path=directory, names=", ".join(existing[:MAX_NAMES]) + more)
        )


def _files() -> Iterator[tuple[Path, Path]]:
    """Each starter file and its name in the project; of the READMEs, the one in the user's language."""
    names = {Path("gitignore"): Path(".gitignore"), Path(f"README.{language()}.md"): Path("README.md")}
    for source in sorted(STARTER.rglob("*")):
        name = source.relative_to(STARTER)
        if source.is_dir() or "__pycache__" in name.parts:
            continue
        if name.name.startswith("README.") and name not in names:
            continue
        yield source, names.get(name, name)
