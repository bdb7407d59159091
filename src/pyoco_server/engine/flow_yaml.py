"""flow.yaml: checked where it is submitted, checked again and made a flow where it runs."""

import hashlib
from typing import Any

import msgspec
from msgspec import Struct
from pyoco.core.models import Flow
from pyoco.schemas.config import PyocoConfig

from pyoco_server.domain.suggestions import nearest
from pyoco_server.domain.yaml_reading import decode, read_yaml
from pyoco_server.engine.flow_policy import check_policy
from pyoco_server.engine.flow_references import check_references
from pyoco_server.engine.graph_grammar import build_flow, check_graph
from pyoco_server.engine.task_loading import load_tasks
from pyoco_server.errors import ExecutionFailed, WorkflowTooLarge


class FlowYaml(Struct, frozen=True):
    """A file that was accepted."""

    text: str
    sha256: str
    bytes: int
    defaults: dict[str, Any]


class LoadedFlow(Struct, frozen=True):
    flow: Any
    defaults: dict[str, Any]


def check_flow_yaml(data: bytes, max_bytes: int, allowed_env: tuple[str, ...] = ()) -> FlowYaml:
    """What a gateway can know about a file. Raises WorkflowTooLarge or InvalidRequest."""
    if len(data) > max_bytes:
        raise WorkflowTooLarge(f"flow.yaml has {len(data):,} bytes; {max_bytes:,} are allowed")
    text = decode(data)
    config = _read(text, allowed_env)
    check_graph(config, allowed_env)
    _check_size(config.flow.defaults, max_bytes)
    return FlowYaml(text, hashlib.sha256(data).hexdigest(), len(data), config.flow.defaults)


def load_flow(text: str, flow_name: str, allowed_modules: tuple[str, ...] = ()) -> Flow:
    """The flow of a file, on a worker."""
    return load_flow_and_defaults(text, flow_name, allowed_modules).flow


def load_flow_and_defaults(
    text: str, flow_name: str, allowed_modules: tuple[str, ...] = (), allowed_env: tuple[str, ...] = ()
) -> LoadedFlow:
    """Checks everything again: a queue may be written to by others than our gateway.

    Raises InvalidRequest for the file and ExecutionFailed for what this worker does not have.
    """
    config = _read(text, allowed_env)
    used = check_graph(config, allowed_env)
    tasks = load_tasks(config, allowed_modules)
    for name in sorted(used - tasks.keys()):
        raise ExecutionFailed(
            f"flow.graph: the task {name!r} is not defined{nearest(name, tasks)}; add tasks.{name} with a "
            "callable, or give this worker a plug-in or PYOCO_DISCOVERY_MODULES that has it"
        )
    return LoadedFlow(build_flow(config, tasks, flow_name), config.flow.defaults)


def _read(text: str, allowed_env: tuple[str, ...]) -> PyocoConfig:
    document = read_yaml(text)
    config = check_policy(document)
    check_references(document, config, allowed_env)
    return config


def _check_size(defaults: dict[str, Any], max_bytes: int) -> None:
    """Aliases and escapes can make the values larger than the file, and they travel with the job as JSON."""
    size = len(msgspec.json.encode(defaults))
    if size > max_bytes:
        raise WorkflowTooLarge(f"flow.defaults has {size:,} bytes as JSON; {max_bytes:,} are allowed")
