"""A way to a server that can be cut (what is open stays open, and nothing comes through) or interrupted."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress


class SilentProxy:
    def __init__(self, port: int) -> None:
        self._target = port
        self._pumps: set[asyncio.Task[None]] = set()
        self._sinks: list[asyncio.StreamWriter] = []
        self.port = 0
        self.connections = 0
        self.is_cut = False
        self.loses_next_answer = False
        """The next answer closes its connection instead."""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """New connections are refused: one that is never answered would leave its client with a socket."""
        self.is_cut = True
        self._server.close()

    def interrupt(self) -> None:
        """Close what is open; new connections are served."""
        for sink in self._sinks:
            sink.transport.abort()
        self._sinks.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._sinks += [back, writer]
        self.connections += 1
        for source, sink in ((reader, back), (there, writer)):
            self._pumps.add(asyncio.ensure_future(self._pump(source, sink, is_answer=source is there)))

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65536):
                    if is_answer and self.loses_next_answer:
                        self.loses_next_answer = False
                        return
                    if not self.is_cut:
                        sink.write(data)
        finally:
            sink.close()

    async def stop(self) -> None:
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


@asynccontextmanager
async def silent_proxy(port: int) -> AsyncIterator[SilentProxy]:
    proxy = SilentProxy(port)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.stop()


class StoppingProxy(SilentProxy):
    """In front of NATS: everything stops with the first message that a test waits for."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._is_wanted: Callable[[str, bytes], bool] = lambda _subject, _data: False
        self._lets_through = False
        self.has_stopped = asyncio.Event()

    def stop_at(self, is_wanted: Callable[[str, bytes], bool], *, lets_through: bool) -> None:
        """`lets_through`: the server gets this message, but its answer is not heard any more."""
        self.is_cut = False
        self.has_stopped.clear()
        self._is_wanted, self._lets_through = is_wanted, lets_through

    def go_on(self) -> None:
        self.stop_at(lambda _subject, _data: False, lets_through=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        if is_answer:
            await super()._pump(source, sink, is_answer=True)
            return
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while line := await source.readuntil(b"\r\n"):
                    await self._pass_on(line, source, sink)
        finally:
            sink.close()

    async def _pass_on(self, line: bytes, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        words, data = line.split(), b""
        if words and words[0].upper() in (b"PUB", b"HPUB"):
            data = await source.readexactly(int(words[-1]) + 2)
            if not self.is_cut and self._is_wanted(words[1].decode(), data):
                self.is_cut = True
                self.has_stopped.set()
                if self._lets_through:
                    sink.write(line + data)
        if not self.is_cut:
            sink.write(line + data)


@asynccontextmanager
async def stopping_proxy(port: int) -> AsyncIterator[StoppingProxy]:
    proxy = StoppingProxy(port)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.stop()
