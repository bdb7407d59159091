"""Tools for agents: the Model Context Protocol in front of the HTTP API.

Its server is a client of a gateway, so keys, tenants, scopes and the audit trail are those of the HTTP API.
Only this folder imports the SDK of the protocol, which is an extra; see docs/decisions/0037-mcp.md.
"""

from typing import Literal, get_args

Change = Literal["submit", "cancel", "retry", "answer"]
CHANGES: tuple[Change, ...] = get_args(Change)
"""What an agent may be allowed beside reading: a tool for each."""
PATH = "/mcp"
"""Of the endpoint, over HTTP."""
