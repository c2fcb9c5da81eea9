"""Gates: proxies between a broker and the listeners of engines that can delay an insert.

A gate reads complete HTTP requests before it passes them on. So an insert that it holds has left
the broker completely and has not reached the engine. Answers are passed on at once, unless the gate
holds answers. It holds one insert at a time and passes everything else."""

import contextlib
import re
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

LIMIT_S = 60.0
_HEAD_MAX_BYTES = 64 * 1024
_CHUNK_BYTES = 256 * 1024
_INSERT = re.compile(rb"POST [^ ]*INSERT(?:\+|%20)INTO(?:\+|%20)messages(?:\+|%20)")
_REGISTRY = re.compile(rb"\bregistry\b")
_TOKEN = re.compile(rb"insert_deduplication_token=([^& ]+)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class GateError(Exception):
    """The gate got something that it cannot handle."""


@dataclass
class Held:
    """An insert that is held, with the token of its block."""

    token: str
    is_answer: bool
    client: socket.socket
    """The connection on which the broker waits for the answer."""
    released: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    """The engine has answered it."""

    dropped: bool = False

    def release(self) -> None:
        self.released.set()

    def drop(self) -> None:
        """Drop the insert: it never arrives, and its connection is closed."""
        self.dropped = True
        self.released.set()

    def await_answer(self) -> None:
        if not self.answered.wait(LIMIT_S):
            raise GateError(f"the engine did not answer block {self.token}")

    def await_given_up(self) -> None:
        """Wait until the broker waits for the answer no longer."""
        if not self.is_given_up(within_s=LIMIT_S):
            raise GateError(f"the broker still waits for the answer to block {self.token}")

    def is_given_up(self, within_s: float = 0.0) -> bool:
        """Whether the broker waits for the answer no longer: it sends the block again."""
        with selectors.DefaultSelector() as ready:
            ready.register(self.client, selectors.EVENT_READ)
            return bool(ready.select(within_s))  # a connection that ends is readable


class Gates:
    """Gates on `host`, one for each listener that `open_for` is asked for."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._wanted = False
        self._answers = False
        self._caught: Held | None = None
        self._is_caught = threading.Event()
        self._lets_registry = threading.Event()
        self._lets_registry.set()
        self._servers: list[socket.socket] = []
        self._open: set[socket.socket] = set()

    def open_for(self, url: str) -> str:
        """The URL to use instead of that of an engine's listener."""
        engine = urlsplit(url)
        assert engine.hostname is not None
        assert engine.port is not None
        server = socket.create_server((self._host, 0))
        self._servers.append(server)
        _in_background(partial(self._accept, server, (engine.hostname, engine.port)))
        return f"http://{self._host}:{server.getsockname()[1]}"

    def hold_next(self, *, answers: bool = False) -> None:
        """Hold the next insert into `messages`, or its answer."""
        with self._lock:
            self._wanted, self._answers, self._caught = True, answers, None
            self._is_caught.clear()

    def hold_registry(self) -> None:
        """From now on hold all requests of the broker to the registry."""
        self._lets_registry.clear()

    def release_registry(self) -> None:
        self._lets_registry.set()

    def await_held(self) -> Held:
        if not self._is_caught.wait(LIMIT_S):
            raise GateError("no insert came to be held")
        assert self._caught is not None
        return self._caught

    def close(self) -> None:
        for server in self._servers:
            # A socket that is only closed still accepts while a thread waits in accept().
            server.shutdown(socket.SHUT_RDWR)
            server.close()
        self._lets_registry.set()
        with self._lock:
            if self._caught is not None:
                self._caught.drop()
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket, engine: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed
            _in_background(partial(self._serve, client, engine))

    def _serve(self, client: socket.socket, engine: tuple[str, int]) -> None:
        """One request after the other, each with its answer."""
        # A lost connection, on either side, is for the broker to cope with.
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(engine, LIMIT_S) as server,
        ):
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            try:
                while request := _request(client):
                    if _REGISTRY.search(request) and not _INSERT.match(request):
                        self._lets_registry.wait()
                    held = self._catch(request, client)
                    if held is not None and not held.is_answer:
                        held.released.wait()
                        if held.dropped:
                            return
                    server.sendall(request)
                    if not self._answer(server, client, held):
                        return
            finally:
                with self._lock:
                    self._open -= {client, server}

    def _answer(self, server: socket.socket, client: socket.socket, held: Held | None) -> bool:
        """Passes on what the engine says until the broker asks again; False at its end."""
        first = server.recv(_CHUNK_BYTES)
        if held is not None:
            held.answered.set()
            held.released.wait()  # long ago, unless it is the answer that is held
        if not first:
            return False
        client.sendall(first)
        _pipe_until_readable(server, client)
        return True

    def _catch(self, request: bytes, client: socket.socket) -> Held | None:
        if not _INSERT.match(request):
            return None
        with self._lock:
            if not self._wanted:
                return None
            self._wanted = False
            token = _TOKEN.search(request)
            if token is None:
                raise GateError(f"an insert without a token: {request[:500]!r}")
            self._caught = Held(token[1].decode(), self._answers, client)
        self._is_caught.set()
        return self._caught


def _request(client: socket.socket) -> bytes:
    """The next whole request; empty when there is none any more."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _HEAD_MAX_BYTES:
            raise GateError("a request without an end to its head")
        piece = client.recv(_CHUNK_BYTES)
        if not piece:
            return b""
        data += piece
    head, _, _ = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head + b"\r\n")
    if length is None and not head.startswith(b"GET"):
        raise GateError(f"a request without a length: {head[:500]!r}")
    whole = len(head) + 4 + (int(length[1]) if length else 0)
    while len(data) < whole:
        piece = client.recv(_CHUNK_BYTES)
        if not piece:
            return b""
        data += piece
    return data


def _pipe_until_readable(source: socket.socket, target: socket.socket) -> None:
    """Copies until the target has something to say, or either ends."""
    with selectors.DefaultSelector() as ready:
        ready.register(source, selectors.EVENT_READ)
        ready.register(target, selectors.EVENT_READ)
        while True:
            which = {key.fileobj for key, _ in ready.select()}
            if source in which:
                piece = source.recv(_CHUNK_BYTES)
                if not piece:
                    target.shutdown(socket.SHUT_RDWR)
                    return
                target.sendall(piece)
            elif target in which:
                return


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
