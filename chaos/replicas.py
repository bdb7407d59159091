"""What each node of a cluster tells, asked by itself.

A node that was cut off believes for some seconds that it leads what it led before, also after its network is
back: whoever asks through it is told what was stored before the cut. A checker must not believe that.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import nats.errors
from nats.js.errors import NotFoundError

from members import NatsNode
from pyoco_server.jetstream.streams import resources
from sites import Site

ANSWER_SEC = 3.0
LOOK_SEC = 0.2


async def agreed(site: Site, patience: float) -> float:
    """Wait until all nodes name the same leader of every stream, with all its replicas; how long it took.

    Who believes to lead a stream answers for it himself: if all that are asked name one leader, there is no
    other. From then on, and as long as nobody is cut off, it has all that was ever acknowledged.
    """
    began = time.monotonic()
    while True:
        is_over = await _is_settled(site)
        took = time.monotonic() - began
        if is_over or took > patience:
            return took
        await asyncio.sleep(LOOK_SEC)


async def _is_settled(site: Site) -> bool:
    try:
        found = [cluster for node in site.nats for cluster in await _clusters(site, node)]
    except (nats.errors.Error, OSError, TimeoutError):
        return False
    leaders = {(stream, cluster.leader) for stream, cluster in found}
    is_current = all(replica.current for _, cluster in found for replica in cluster.replicas or ())
    return is_current and len(leaders) == len({stream for stream, _ in found})


async def _clusters(site: Site, node: NatsNode) -> list[tuple[str, Any]]:
    """By stream, who leads and who follows, as it is told through this node. A single server has none."""
    async with through(node) as js:
        streams = [stream.name for stream in resources(site.config)]
        found = [(stream, (await js.stream_info(stream)).cluster) for stream in streams]
        return [(stream, cluster) for stream, cluster in found if cluster is not None]


async def told(site: Site, stream: str, subject: str) -> str:
    """For a subject that is missed: what every node says of it, and whom it takes for the leader."""
    return "; ".join([await _told_by(node, stream, subject) for node in site.nats])


async def _told_by(node: NatsNode, stream: str, subject: str) -> str:
    try:
        async with through(node) as js:
            info = await js.stream_info(stream)
            leader = info.cluster.leader if info.cluster else node.name
            try:
                found = f"its last message is {(await js.get_last_msg(stream, subject)).seq}"
            except NotFoundError:
                found = "it has no message"
            return f"{node.name} (leader {leader}, last sequence {info.state.last_seq}): {found}"
    except (nats.errors.Error, OSError, TimeoutError) as error:
        return f"{node.name}: {type(error).__name__}"


@asynccontextmanager
async def through(node: NatsNode) -> AsyncIterator[Any]:
    """JetStream as this node knows it, and no other."""
    client = await nats.connect(node.url, connect_timeout=ANSWER_SEC, allow_reconnect=False)
    try:
        yield client.jetstream(timeout=ANSWER_SEC)
    finally:
        await client.close()
