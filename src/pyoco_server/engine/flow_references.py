"""References in the inputs of a flow.yaml's tasks: `$node.a.output.x`, `$ctx.params.x`, `$env.X`.

pyoco resolves them on the worker. A file comes from whoever may submit runs: it reads the outputs of tasks
and the params of its run, and of the worker's environment only what the operator lists.
"""

from pyoco.schemas.config import PyocoConfig

from pyoco_server.domain.yaml_reading import YamlDocument

_ENV = "$env."
_NODE = "$node."
_INTERNALS = frozenset(
    f"{owner}_{part}"
    for owner, parts in {
        "gi": ("frame", "code", "yieldfrom"),
        "cr": ("frame", "code", "await", "origin"),
        "ag": ("frame", "code", "await"),
        "tb": ("frame", "next"),
        "f": ("globals", "builtins", "locals", "back", "code"),
    }.items()
    for part in parts
)


def check_references(document: YamlDocument, config: PyocoConfig, allowed_env: tuple[str, ...]) -> None:
    """Raises InvalidRequest with the place of a reference that is not allowed."""
    for task, settings in config.tasks.items():
        for name, value in settings.inputs.items():
            problem = _problem_in(value, allowed_env) if isinstance(value, str) else None
            if problem is not None:
                document.refuse(("tasks", task, "inputs", name), problem)


def env_problem(name: str, allowed_env: tuple[str, ...]) -> str | None:
    if name in allowed_env:
        return None
    listed = f"allows {', '.join(allowed_env)}" if allowed_env else "allows none"
    return f"reads the environment variable {name!r} ($env); PYOCO_WORKER_ALLOWED_ENV {listed}"


def attribute_problem(steps: str) -> str | None:
    """Attributes that lead out of a value, into the code that made it."""
    for step in steps.split("."):
        if "__" in step or step in _INTERNALS:
            return f"refers to {step[:64]!r}, which is not part of a value"
    return None


def _problem_in(value: str, allowed_env: tuple[str, ...]) -> str | None:
    if value.startswith(_ENV):
        return env_problem(value.removeprefix(_ENV)[:200], allowed_env)
    if value.startswith(_NODE):
        return attribute_problem(value.removeprefix(_NODE))
    return None
