"""`pyoco-client`: submit runs and look at them, over HTTP."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import cyclopts
import httpx2
from cyclopts import Parameter

from pyoco_server.cli.failures import fail, run_app, told_to_the_user
from pyoco_server.errors import InvalidCliInput
from pyoco_server.http_client import PyocoHttpClient

app = cyclopts.App(name="pyoco-client", help="Submit runs to a pyoco-server and look at them.")

Server = Annotated[str, Parameter(env_var="PYOCO_SERVER_URL")]
DEFAULT_SERVER = "http://127.0.0.1:8000"


@app.command
def submit(
    *, flow_name: str, params: str = "{}", tag: str | None = None, server: Server = DEFAULT_SERVER
) -> None:
    """Submit a run and print its id.

    Parameters
    ----------
    flow_name
        The flow to run.
    params
        Its parameters, as a JSON object.
    tag
        Run it on a worker with this tag.
    server
        Address of the server (also: PYOCO_SERVER_URL).
    """
    with told_to_the_user(), _http_errors(), PyocoHttpClient(server) as client:
        _print(client.submit_run(flow_name, _params(params), tag=tag))


@app.command
def get(
    run_id: str, *, records: Annotated[bool, Parameter(negative="")] = False, server: Server = DEFAULT_SERVER
) -> None:
    """Print the latest state of a run.

    Parameters
    ----------
    run_id
        The run.
    records
        With the records of its tasks.
    server
        Address of the server (also: PYOCO_SERVER_URL).
    """
    with told_to_the_user(), _http_errors(), PyocoHttpClient(server) as client:
        _print(client.get_run(run_id, include=["records"] if records else []))


def _params(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidCliInput(f"--params is not JSON ({error}); example: --params '{{\"x\": 1}}'") from error
    if not isinstance(value, dict):
        raise InvalidCliInput(f"--params must be a JSON object, not {text}; example: --params '{{\"x\": 1}}'")
    return value


def _print(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer, ensure_ascii=False, indent=2))


@contextmanager
def _http_errors() -> Iterator[None]:
    try:
        yield
    except httpx2.HTTPStatusError as error:
        fail(f"HTTP {error.response.status_code}: {error.response.text}")


def main() -> None:
    run_app(app)


if __name__ == "__main__":
    main()
