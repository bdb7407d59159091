"""`pyoco-client logs --follow`: complete and in order, whatever happens in between."""

import asyncio
import signal
from collections.abc import Awaitable, Callable

from support import printing_flows
from support.gateway_process import gateway_process
from support.installation import Lab

Labs = Callable[..., Awaitable[Lab]]
FLOWS = f"{printing_flows.__file__}:resolve"


async def test_a_followed_log_goes_on_over_a_restart_of_the_gateway(labs: Labs) -> None:
    """D28"""
    lab = await labs()
    with gateway_process(lab.programs, lab.config) as first:
        async with lab.worker(flows=FLOWS):
            run_id = await lab.submit("prints_until")
            await lab.reached("printing")
            command = ("pyoco-client", "logs", run_id, "--follow")
            with lab.programs.started(*command, PYOCO_SERVER_URL=first.url) as following:
                await asyncio.to_thread(following.says, "line 5\n")
                first.program.ends_after(signal.SIGKILL)
                await asyncio.sleep(1.0)  # lines that only the log has
                with gateway_process(lab.programs, lab.config, first.port):
                    await asyncio.to_thread(following.says, "line 60\n")
                    lab.let("go")
                    assert await asyncio.to_thread(following.exit_code) == 0
                *lines, last = following.output.splitlines()
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert last == f"{len(lines)} lines"


async def test_a_task_that_prints_too_much_is_followed_in_excerpts(labs: Labs) -> None:
    """D28"""
    lab = await labs()
    with gateway_process(lab.programs, lab.config) as gateway:
        async with lab.worker(flows=FLOWS):
            run_id = await lab.submit("slow_and_much")
            command = ("pyoco-client", "logs", run_id, "--follow")
            with lab.programs.started(*command, PYOCO_SERVER_URL=gateway.url) as following:
                await asyncio.to_thread(following.says, "excerpts: the output rate")
                lab.let("go")
                assert await asyncio.to_thread(following.exit_code) == 0
                output = following.output
    assert output.startswith("line 0 ")
    assert "were cut here …" in output
    assert output.rstrip().endswith("the last")
