"""Where the gateway listens: options that a container sets by its environment."""

from typing import Annotated

from cyclopts import Parameter

Host = Annotated[str, Parameter(env_var="PYOCO_HTTP_HOST", show_env_var=False)]
Port = Annotated[int, Parameter(env_var="PYOCO_HTTP_PORT", show_env_var=False)]
