"""From the name of a flow to the flow: what `--flow-resolver` may name."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from pyoco_server.errors import InvalidCliInput

FlowResolver = Callable[[str], Any]
"""Answers with a pyoco Flow, or raises KeyError for a name it does not know."""

_EXAMPLES = "examples: my_package.flows:resolve   flows/main.py:resolve"


def load_resolver(spec: str) -> FlowResolver:
    """The function that `module:function` or `path/file.py:function` names."""
    place, separator, attribute = spec.rpartition(":")
    if not separator or not place or not attribute:
        raise InvalidCliInput(f"--flow-resolver {spec!r} is not module:function ({_EXAMPLES})")
    module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    resolver = getattr(module, attribute, None)
    if not callable(resolver):
        raise InvalidCliInput(
            f"--flow-resolver {spec!r}: {place} has no function {attribute!r} ({_EXAMPLES})"
        )
    found: FlowResolver = resolver
    return found


def _from_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidCliInput(f"--flow-resolver: {error} ({_EXAMPLES})") from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidCliInput(f"--flow-resolver: there is no file {path} ({_EXAMPLES})")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InvalidCliInput(f"--flow-resolver: {path} is not a Python file ({_EXAMPLES})")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
