"""Files that a task saves with its run. Their content is in the store of large values."""

import re
from collections.abc import Iterable

from msgspec import Struct

MAX_ARTIFACTS = 100
"""Of a run: the snapshot lists them."""
MAX_NAME = 128
MAX_TYPE = 100
BINARY = "application/octet-stream"
"""The type of all artifacts in the store: read by its hash, none is shown as a page."""
_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?: *; *[\w-]+=[\w.:-]+)*", re.ASCII)


class RunArtifact(Struct, frozen=True):
    name: str
    size: int
    type: str
    sha256: str
    task: str | None
    """None: saved outside of a task, or while several ran."""
    created_at: float


def problem_with(name: str, media_type: str) -> str | None:
    """Why an artifact cannot have this name or type."""
    if not 1 <= len(name) <= MAX_NAME:
        return f"the name of an artifact has 1 to {MAX_NAME} characters"
    if not name.isprintable() or set(name) & {"/", "\\"} or name in (".", "..") or name != name.strip():
        return f"{name!r} cannot be the name of an artifact: no path, no control characters, no outer spaces"
    if len(media_type) > MAX_TYPE or not _TYPE.fullmatch(media_type):
        return f"{media_type!r} is not a media type such as text/html"
    return None


def refusal_of(
    saved: Iterable[RunArtifact], new: RunArtifact, most_bytes: int, of_tenant: int, most_of_tenant: int
) -> str | None:
    """`of_tenant`: what the tenant has in all its runs. An artifact of the same name is replaced."""
    others = [one for one in saved if one.name != new.name]
    used = sum(one.size for one in others)
    what = f"artifact {new.name!r} has {new.size:,} bytes"
    if len(others) >= MAX_ARTIFACTS:
        return f"artifact {new.name!r}: a run has at most {MAX_ARTIFACTS} artifacts"
    if used + new.size > most_bytes:
        limit = "PYOCO_ARTIFACTS_MAX_BYTES_PER_RUN"
        return f"{what}, other artifacts of the run {used:,}; at most {most_bytes:,} are allowed ({limit})"
    if of_tenant + new.size > most_of_tenant:
        limit = "PYOCO_ARTIFACTS_MAX_BYTES_PER_TENANT"
        text = f"the artifacts of all runs {of_tenant:,}; at most {most_of_tenant:,} are allowed"
        return f"{what}, {text} ({limit})"
    return None


def added(saved: Iterable[RunArtifact], new: RunArtifact) -> tuple[RunArtifact, ...]:
    return (*(one for one in saved if one.name != new.name), new)


def replaced(saved: Iterable[RunArtifact], new: RunArtifact) -> str | None:
    """The hash of the content that nothing of the run needs any more."""
    found = [one.sha256 for one in saved if one.name == new.name]
    needed = {one.sha256 for one in added(saved, new)}
    return found[0] if found and found[0] not in needed else None
