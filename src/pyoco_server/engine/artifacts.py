"""Where `ctx.save_artifact` writes: one directory per run, made when the first artifact is saved.

pyoco makes ./artifacts for every run of every flow. Its engine takes no other place, so the engine's context
class is replaced by one that has its own place for our runs, and for nobody else's.
"""

from pathlib import Path

import pyoco.core.engine
from pyoco.core.context import Context
from pyoco.core.models import RunContext

ARTIFACTS = Path(".pyoco/artifacts").absolute()
"""Of the directory in which the worker was started, wherever a flow may go."""


class ServerRunContext(RunContext):  # type: ignore[misc]  # pyoco ships no types
    """Marks a run as one of ours."""


class _Context(Context):  # type: ignore[misc]
    artifact_dir: str | None

    def __post_init__(self) -> None:
        if self.artifact_dir is None and isinstance(self.run_context, ServerRunContext):
            self.artifact_dir = str(ARTIFACTS / self.run_context.run_id)
        else:
            super().__post_init__()


pyoco.core.engine.Context = _Context
