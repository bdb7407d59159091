"""From the text of a graph to its definition: values of JSON, not yet looked at."""

from typing import Any

from pyoco_server.domain.json_reading import read_json
from pyoco_server.domain.yaml_reading import YamlKind, decode, read_yaml
from pyoco_server.errors import InvalidRequest

GRAPH_YAML = YamlKind(name="graph", max_nodes=100_000, text_keys=frozenset({"on"}))


def graph_definition(text: str | bytes, content_type: str | None) -> dict[str, Any]:
    """The definition in a text: JSON if the content type says so, else YAML. Raises InvalidRequest."""
    if isinstance(text, bytes):
        text = decode(text, GRAPH_YAML)
    kind = (content_type or "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or kind.endswith("+json")
    definition = read_json(text, GRAPH_YAML.name) if is_json else read_yaml(text, GRAPH_YAML).value
    if not isinstance(definition, dict):
        raise InvalidRequest("graph: must be an object with id, nodes and edges")
    return definition
