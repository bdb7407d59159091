"""The flow that a job asks for: of its own flow.yaml, or the one its name stands for."""

from typing import Any

from msgspec import Struct

from pyoco_server.domain.dispositions import Ending
from pyoco_server.domain.jobs import Job
from pyoco_server.domain.outcomes import FlowOutcome
from pyoco_server.engine.flow_resolving import FlowResolver, UnknownFlow
from pyoco_server.engine.flow_yaml import load_flow_and_defaults
from pyoco_server.engine.raised import raised
from pyoco_server.engine.values import described
from pyoco_server.errors import PyocoServerError


class FlowOfJob(Struct, frozen=True):
    flow: Any
    params: dict[str, Any]


def flow_of(
    job: Job,
    resolver: FlowResolver,
    allowed_modules: tuple[str, ...] = (),
    allowed_env: tuple[str, ...] = (),
) -> FlowOfJob | FlowOutcome:
    """The flow and its params, or how the run ends because there is none."""
    if job.workflow_yaml is not None:
        return _from_yaml(job, job.workflow_yaml, allowed_modules, allowed_env)
    return _from_resolver(job, resolver)


def _from_yaml(
    job: Job, text: str, allowed_modules: tuple[str, ...], allowed_env: tuple[str, ...]
) -> FlowOfJob | FlowOutcome:
    try:
        loaded = load_flow_and_defaults(text, job.flow_name, allowed_modules, allowed_env)
    except PyocoServerError as error:
        return FlowOutcome(ending=Ending.EXECUTION_ERROR, error=error.detail, raised=raised(error))
    # The file is the truth for its params; a gateway may have put them into the job as well, or not.
    return FlowOfJob(loaded.flow, loaded.defaults)


def _from_resolver(job: Job, resolver: FlowResolver) -> FlowOfJob | FlowOutcome:
    try:
        return FlowOfJob(resolver(job.flow_name), job.params or {})
    except KeyError as error:
        return FlowOutcome(
            ending=Ending.FLOW_NOT_FOUND,
            error=f"flow not found: {job.flow_name}{_suggestion(error)}",
            raised=raised(error),
        )
    except BaseException as error:  # noqa: BLE001 - a resolver is user code
        return FlowOutcome(
            ending=Ending.EXECUTION_ERROR,
            error=f"the flow resolver raised {described(error)}",
            raised=raised(error),
        )


def _suggestion(error: KeyError) -> str:
    return f"; {error.advice}" if isinstance(error, UnknownFlow) else ""
