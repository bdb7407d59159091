"""A gateway in this process and workers as processes of their own, on one NATS."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import Any

import httpx2

from pyoco_server.config import NatsBackendConfig, env_name
from support import process_flows
from support.gateway import gateway
from support.nats_server import delete_streams_of, unique_config
from support.programs import Program, Programs
from support.waiting import until

FLOWS = f"{process_flows.__file__}:resolve"
TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}


class Lab:
    def __init__(self, config: NatsBackendConfig, programs: Programs, http: httpx2.AsyncClient) -> None:
        self.config = config
        self.programs = programs
        self.http = http
        self.marks = programs.directory / "marks"
        self.marks.mkdir()

    @asynccontextmanager
    async def worker(
        self, worker_id: str = "w1", *options: str, concurrency: int = 1, flows: str = FLOWS
    ) -> AsyncIterator[Program]:
        """A worker that is ready."""
        command = ("pyoco-worker", "--flow-resolver", flows, "--worker-id", worker_id)
        with self.programs.started(
            *command, "--concurrency", str(concurrency), *options, **environment(self.config)
        ) as program:
            await asyncio.to_thread(program.says, "worker ready")
            yield program

    async def submit(self, flow: str, fields: dict[str, Any] | None = None, **params: Any) -> str:
        """`fields`: of the request, beside its params."""
        body = {"flow_name": flow, "params": {"marks": str(self.marks), **params}, **(fields or {})}
        answer = await self.http.post("/runs", json=body)
        assert answer.status_code == 200, answer.text
        run_id: str = answer.json()["run_id"]
        return run_id

    async def run(self, run_id: str) -> dict[str, Any]:
        answer = await self.http.get(f"/runs/{run_id}", params={"include": "records"})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def ended(self, run_id: str) -> dict[str, Any]:
        return await until(lambda: self.run(run_id), lambda run: run["status"] in TERMINAL)

    async def all_ended(self, run_ids: Iterable[str]) -> list[dict[str, Any]]:
        return [await self.ended(run_id) for run_id in run_ids]

    async def cancel(self, run_id: str) -> str:
        """The status it was answered with."""
        answer = await self.http.post(f"/runs/{run_id}/cancel")
        assert answer.status_code == 200, answer.text
        status: str = answer.json()["status"]
        return status

    async def reached(self, name: str) -> int:
        """A flow has left this mark; answers with its process."""
        path = self.marks / name

        async def is_there() -> bool:
            return path.exists()

        await until(is_there)
        return int(path.read_text())

    def let(self, name: str) -> None:
        (self.marks / name).write_text("0")

    def forget(self, name: str) -> None:
        (self.marks / name).unlink()


def environment(config: NatsBackendConfig) -> dict[str, str]:
    """The settings that are not as by default, for a process."""
    return {
        env_name(field.name): str(value)
        for field in fields(config)
        if (value := getattr(config, field.name)) != field.default
    }


@asynccontextmanager
async def new_lab(nats_url: str, programs: Programs, **settings: Any) -> AsyncIterator[Lab]:
    config = unique_config(nats_url, **settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(delete_streams_of, config)
        http = await stack.enter_async_context(gateway(config))
        yield Lab(config, programs, http)
