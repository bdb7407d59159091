"""A gateway that stops for ever between the claim of a key and the start of its run: `… <port> <file>`."""

import asyncio
import sys
from pathlib import Path

import uvicorn

from pyoco_server.config import NatsBackendConfig
from pyoco_server.domain.runs.jobs import Job
from pyoco_server.http_api import create_app
from pyoco_server.usecases.runs.submit import SubmitRun


def main(port: int, mark: Path) -> None:
    async def hang(_self: SubmitRun, job: Job, _before_job: object = None) -> None:
        written = mark.with_suffix(".new")
        written.write_text(job.run_id)
        written.rename(mark)
        await asyncio.Event().wait()

    SubmitRun.place_claimed = hang  # type: ignore[method-assign, assignment]
    app = create_app(NatsBackendConfig.from_env())
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
