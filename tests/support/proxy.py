"""A TCP proxy on loopback that delays, swallows, cuts and resets what passes through it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from enum import Enum
from typing import TYPE_CHECKING, Final, Self

from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from types import TracebackType

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 65_536


class Fault(Enum):
    """What the proxy does to what passes."""

    NONE = "none"
    # Answers come later by `delay_seconds`.
    DELAY = "delay"
    # Requests arrive, answers do not, and the connection stays open.
    SWALLOW = "swallow"
    # Requests arrive; at the first answer the connection is closed.
    CUT = "cut"
    # New connections are reset, and so are old ones at their next byte.
    RESET = "reset"


class Proxy:
    """Stands between clients and a server, in a `with` block. Its fault may be changed at any time."""

    def __init__(self, port: int, host: str = HOST) -> None:
        """Take the address of the server."""
        self._server = (host, port)
        self.fault = Fault.NONE
        self.delay_seconds = 0.0
        self.connections = 0
        self.faults = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def lead_to(self, port: int) -> None:
        """Lead new connections to another port: the server was started again there."""
        self._server = (self._server[0], port)

    def __enter__(self) -> Self:
        """Start to listen on a free port."""
        self._thread.start()
        if not self._ready.wait(PATIENCE_SECONDS):
            raise TimeoutError("the proxy did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, HOST, 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.fault is Fault.RESET:
            self._reset(writer)
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._server)
        except OSError:
            self._reset(writer)
            return
        ways = [
            asyncio.ensure_future(self._requests(reader, server_writer, writer)),
            asyncio.ensure_future(self._answers(server_reader, writer)),
        ]
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the proxy ends
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, server_writer):
                each.close()

    async def _requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if self.fault is Fault.RESET:
                    self._reset(client)
                    return
                server.write(data)
                await server.drain()

    async def _answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await server.read(CHUNK_BYTES):
                if self.fault is Fault.SWALLOW:
                    self.faults += 1
                    continue
                if self.fault is Fault.CUT:
                    self.faults += 1
                    return
                if self.fault is Fault.DELAY:
                    self.faults += 1
                    # An answer in several pieces is late once, not once for each.
                    asyncio.get_running_loop().call_later(self.delay_seconds, client.write, data)
                    continue
                client.write(data)
                await client.drain()
            await asyncio.sleep(self.delay_seconds if self.fault is Fault.DELAY else 0)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self.faults += 1
        # To linger for no time is to answer with RST instead of FIN.
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
