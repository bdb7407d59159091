"""Commands for graphs."""

from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.output import AS_JSON, Client, Columns, Cursor, Limit, Shown
from pyoco_server.domain.strict_yaml import graph_definition
from pyoco_server.errors import InvalidCliInput, InvalidRequest

app = cyclopts.App(name="graphs", help="Register and inspect graphs.")

GraphId = Annotated[str, Parameter(help="Graph id.")]
_GRAPHS = Columns(
    ("graph_id",),
    ("graph_id", "version", "nodes", "registered_at", "registered_by"),
    ("registered_by", "registered_at", "nodes"),
)


@app.command
def put(
    file: Path,
    *,
    graph_id: Annotated[str | None, Parameter(name="--id")] = None,
    shown: Shown = AS_JSON,
    client: Client,
) -> None:
    """Register a graph as its next version; an unchanged graph keeps its version.

    Parameters
    ----------
    file
        Graph definition: YAML, or JSON if named *.json.
    graph_id
        Graph id. Default: the id in the file, else the file name without extension.
    """
    if not file.is_file():
        raise InvalidCliInput(texts.NO_SUCH_FILE(path=file))
    definition = read_graph(file)
    wanted = graph_id or definition.get("id") or file.stem
    shown.one(client.put_graph(str(wanted), definition), "graph_id")


def read_graph(file: Path) -> dict[str, Any]:
    content_type = "application/json" if file.suffix.lower() == ".json" else "application/yaml"
    try:
        return graph_definition(file.read_bytes(), content_type)
    except InvalidRequest as error:
        raise InvalidCliInput(f"{file}: {error.detail}") from error


@app.command(name="get")
def get_graph(
    graph_id: GraphId, *, version: int | None = None, shown: Shown = AS_JSON, client: Client
) -> None:
    """Print a graph.

    Parameters
    ----------
    version
        Graph version. Default: the latest.
    """
    shown.one(client.get_graph(graph_id, version), "graph_id")


@app.default
@app.command(name="list")
def list_graphs(*, limit: Limit = 50, cursor: Cursor = None, shown: Shown = AS_JSON, client: Client) -> None:
    """List the latest version of each graph."""
    page: Any = client.list_graphs(cursor, limit)
    shown.page(page, _GRAPHS, texts.NO_GRAPHS)
