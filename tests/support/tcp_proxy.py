"""A TCP proxy that simulates faults of networks and servers.

By default it passes everything on. A fault affects open and new connections until another one is
set. The proxy runs on the event loop of the test.
"""

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.server_process import free_port

_CHUNK_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


@dataclass(frozen=True, slots=True)
class _Fault:
    stall: bool = False
    cut_to_server: int | None = None
    cut_to_client: int | None = None
    twice: bool = False


class TcpProxy:
    """`async with TcpProxy("127.0.0.1:8123") as proxy`: reach it at `proxy.address`."""

    def __init__(self, target: str, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: for connections of clients; the target is reached without TLS."""
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._tls = tls
        self._port = free_port()  # after `refuse` nobody else must get it
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._pipes: set[asyncio.StreamWriter] = set()
        self._fault = _Fault()
        self._changed = asyncio.Event()
        self.accepted = 0
        """Connections so far."""
        self.to_server = 0
        """Bytes passed on so far."""
        self.from_clients = 0
        """Bytes that clients have sent so far, also those that were not passed on."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self.address}"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._connections)

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.refuse()

    # --- faults

    async def pass_on(self) -> None:
        self._set(_Fault())
        await self._listen()

    async def refuse(self) -> None:
        """Stop listening, and reset open connections."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self.reset()

    async def lead_to(self, target: str) -> None:
        """Connect to another server from now on, and reset open connections."""
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        await self.reset()

    async def reset(self) -> None:
        """Reset open connections on both sides."""
        for connection in tuple(self._connections):
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def stall(self) -> None:
        """Accept connections but pass nothing on. `pass_on` continues where this stopped."""
        self._set(_Fault(stall=True))

    def cut(self, *, to_server: int | None = None, to_client: int | None = None) -> None:
        """Reset each connection after so many more bytes in one direction."""
        self._set(_Fault(cut_to_server=to_server, cut_to_client=to_client))

    def lose_answers(self) -> None:
        """Pass requests on, and reset the connection instead of passing the answer on."""
        self.cut(to_client=0)

    def answer_twice(self) -> None:
        """Send every piece of an answer twice."""
        self._set(_Fault(twice=True))

    async def close_idle(self) -> None:
        """Close open connections normally, as a server does with idle ones."""
        for pipe in tuple(self._pipes):
            pipe.close()
        if self._connections:
            await asyncio.wait(self._connections)

    # --- how they are made

    def _set(self, fault: _Fault) -> None:
        self._fault = fault
        self._changed.set()
        self._changed = asyncio.Event()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(
                self._accepted, "127.0.0.1", self._port, ssl=self._tls
            )

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(*self._target)
        except OSError:
            _reset(writer)
            return
        self._pipes.add(writer)
        up = asyncio.create_task(self._pump(reader, server, to_server=True))
        down = asyncio.create_task(self._pump(answers, writer, to_server=False))
        in_order = False
        try:
            done, _ = await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            in_order = all(pump.result() for pump in done)
        finally:
            self._pipes.discard(writer)
            for pump in (up, down):
                pump.cancel()
            if in_order:
                writer.close()
            else:
                _reset(writer)
            server.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, to_server: bool
    ) -> bool:
        """Whether the source has ended by itself."""
        fault, passed = self._fault, 0
        try:
            while data := await source.read(_CHUNK_BYTES):
                self.from_clients += len(data) if to_server else 0
                while self._fault.stall:
                    await self._changed.wait()
                if fault is not self._fault:
                    fault, passed = self._fault, 0
                limit = fault.cut_to_server if to_server else fault.cut_to_client
                cut = limit is not None and passed + len(data) > limit
                if limit is not None and cut:
                    data = data[: limit - passed]
                passed += len(data)
                sink.write(data * 2 if fault.twice and not to_server else data)
                self.to_server += len(data) if to_server else 0
                await sink.drain()
                if cut:
                    return False
        except OSError:
            return False
        return True


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        with suppress(OSError):  # closed already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
