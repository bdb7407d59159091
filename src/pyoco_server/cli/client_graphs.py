"""`pyoco-client graphs …`: register graphs and look at them."""

from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter

from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.client_output import Client, note, print_json
from pyoco_server.cli.options import Output
from pyoco_server.cli.tables import print_table
from pyoco_server.domain.execution.graph_text import graph_definition
from pyoco_server.errors import InvalidCliInput, InvalidRequest

app = cyclopts.App(name="graphs", help="Register graphs and look at them.")

_COLUMNS = ("graph_id", "version", "nodes", "registered_at", "registered_by")
_EXPENDABLE = ("registered_by", "nodes", "registered_at")
_EXPENDABLE = ("registered_by", "registered_at", "nodes")


@app.command
def put(
    file: Path, *, graph_id: Annotated[str | None, Parameter(name="--id")] = None, client: Client
) -> None:
    """Register a graph: its next version, or the same one if nothing changed.

    Parameters
    ----------
    file
        The definition, YAML or (called *.json) JSON.
    graph_id
        The graph's id. Default: the id in the file, else the file's name without its ending.
    """
    if not file.is_file():
        raise InvalidCliInput(texts.NO_SUCH_FILE(path=file))
    content_type = "application/json" if file.suffix.lower() == ".json" else "application/yaml"
    try:
        definition = graph_definition(file.read_bytes(), content_type)
    except InvalidRequest as error:
        raise InvalidCliInput(f"{file}: {error.detail}") from error
    wanted = graph_id or definition.get("id") or file.stem
    print_json(client.put_graph(str(wanted), definition))


@app.command
def get(graph_id: str, *, version: int | None = None, client: Client) -> None:
    """Print a graph.

    Parameters
    ----------
    graph_id
        The graph's id.
    version
        An older version. Default: the newest.
    """
    print_json(client.get_graph(graph_id, version))


@app.command(name="list")
def list_graphs(
    *, limit: int = 50, cursor: str | None = None, output: Output = "json", client: Client
) -> None:
    """Print the newest version of each graph.

    Parameters
    ----------
    limit
        At most so many (up to 200).
    cursor
        next_cursor of the page before.
    """
    page: Any = client.list_graphs(cursor, limit)
    if output == "json":
        print_json(page)
    elif page["items"]:
        print_table(page["items"], _COLUMNS, _EXPENDABLE)
    else:
        note(texts.NO_GRAPHS())
