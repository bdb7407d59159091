"""`pyoco-client`: submit, watch and manage runs, executions and workers over HTTP."""

import sys
from typing import Annotated, NoReturn

import cyclopts
import httpx2
from cyclopts import Parameter

from pyoco_server.cli import client_events, client_executions, client_fleet, client_runs, client_schedules
from pyoco_server.cli import client_texts as texts
from pyoco_server.cli.failures import facts_of, fail, reporting_failures, run_app, with_message
from pyoco_server.cli.output import fail_http, server_url
from pyoco_server.cli.terminal import add_completion
from pyoco_server.config import secret_variable
from pyoco_server.errors import GatewayUnreachable, PyocoServerError, UntrustedCertificate
from pyoco_server.http_client import PyocoHttpClient

app = cyclopts.App(name="pyoco-client", help="Submit and inspect runs on a pyoco-server.")
for part in (client_runs, client_fleet, client_executions, client_schedules):
    for name, command in part.COMMANDS.items():
        app.command(command, name=name)
app.command(client_executions.graphs_app)
app.command(client_executions.app)
app.command(client_schedules.app)
for group in client_events.APPS:
    app.command(group)


@app.meta.default
def launch(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    server: str | None = None,
    api_key: str | None = None,
    api_key_header: str = "X-API-Key",
) -> None:
    """Run a command.

    Parameters
    ----------
    server
        Server URL (also: PYOCO_SERVER_URL). Default: the server started in this directory, else
        http://127.0.0.1:8000
    api_key
        API key for a server with authentication (also: PYOCO_API_KEY, PYOCO_API_KEY_FILE).
    api_key_header
        HTTP header for the API key.
    """
    command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
    with reporting_failures():
        if "client" not in ignored:
            command(*bound.args, **bound.kwargs)
            return
        key = api_key or secret_variable("PYOCO_API_KEY")
        with PyocoHttpClient(server_url(server), key, api_key_header) as client:
            bound.arguments["client"] = client
            try:
                sys.exit(command(*bound.args, **bound.kwargs) or 0)
            except httpx2.HTTPStatusError as error:
                fail_http(error.response)
            except UntrustedCertificate as error:
                _fail(error, texts.CERTIFICATE_ADVICE())
            except GatewayUnreachable as error:
                _fail(error, texts.NO_SERVER_ADVICE())


def _fail(error: PyocoServerError, advice: str) -> NoReturn:
    fail(with_message(error.entry, error.detail), advice, **facts_of(error.entry, error.detail))


add_completion(app)


def main() -> None:
    run_app(app, app.meta)


if __name__ == "__main__":
    main()
