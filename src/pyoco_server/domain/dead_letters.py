"""Dead letters: what one contains, which ones match, what a redrive makes of one."""

from enum import StrEnum
from uuid import NAMESPACE_URL, uuid5

from msgspec import Struct
from msgspec.structs import asdict

CLOCKS_DIFFER_SEC = 3600.0
"""How far the clocks of workers may be apart: letters are not stored in the order of their times."""


class DlqReason(StrEnum):
    INVALID_JOB = "invalid_job"
    FLOW_NOT_FOUND = "flow_not_found"
    EXECUTION_ERROR = "execution_error"
    MAX_DELIVER = "max_deliver"


class DeadLetter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the dead letter stream, without params, which may be secret."""

    timestamp: float
    reason: DlqReason
    error: str | None
    run_id: str | None = None
    flow_name: str | None = None
    tag: str | None = None
    tags: tuple[str, ...] | None = None
    worker_id: str | None = None
    num_delivered: int | None = None
    subject: str | None = None
    payload: str | None = None


class StoredLetter(Struct, frozen=True, kw_only=True):
    number: int
    """Its place in the store."""
    tag: str
    tenant_id: str | None = None
    """None: unknown, because an older worker wrote it, or because its job was unreadable."""
    letter: DeadLetter

    @property
    def id(self) -> str:
        return str(self.number)

    @property
    def mark_key(self) -> str:
        """With its time: a store that was deleted counts from 1 again."""
        return f"{self.number}.{int(self.letter.timestamp * 1000)}"

    @property
    def redriven_run_id(self) -> str:
        """The same at every attempt, so that a repeated redrive is one run."""
        return str(uuid5(NAMESPACE_URL, f"pyoco:dead-letter:{self.mark_key}:{self.letter.run_id}"))


class LetterMark(Struct, frozen=True):
    """Stored when a letter was redriven."""

    redriven_as: str


class LetterFilter(Struct, frozen=True, kw_only=True):
    reason: DlqReason | None = None
    tag: str | None = None
    flow: str | None = None
    since: float | None = None

    def matches(self, stored: StoredLetter) -> bool:
        letter = stored.letter
        return (
            self.reason in (None, letter.reason)
            and self.tag in (None, stored.tag, letter.tag, *(letter.tags or ()))
            and self.flow in (None, letter.flow_name)
            and (self.since is None or letter.timestamp >= self.since)
        )

    def is_over_at(self, oldest: StoredLetter) -> bool:
        """Whether all letters stored before this one are too old."""
        return self.since is not None and oldest.letter.timestamp < self.since - CLOCKS_DIFFER_SEC


# Answers


class DeadLetterView(DeadLetter, frozen=True, kw_only=True, omit_defaults=False):
    """A job that no worker could finish. `redriven_as`: the run that repeats it."""

    id: str
    redriven_as: str | None = None


class DeadLetterPage(Struct, frozen=True):
    """Newest first. A page may be short although there are more: follow its cursor."""

    items: list[DeadLetterView]
    next_cursor: str | None


class Redriven(Struct, frozen=True):
    run_id: str


class DeadLetterDiscarded(Struct, frozen=True):
    id: str
    discarded: bool


DEAD_LETTER_ANSWERS = (DeadLetterView, DeadLetterPage, Redriven, DeadLetterDiscarded)


def letter_view(stored: StoredLetter, mark: LetterMark | None) -> DeadLetterView:
    redriven_as = None if mark is None else mark.redriven_as
    return DeadLetterView(id=stored.id, redriven_as=redriven_as, **asdict(stored.letter))
