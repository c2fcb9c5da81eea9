"""Asks the process that decodes, and starts it when it is needed."""

from __future__ import annotations

import asyncio
import json
import sys

from brokerhouse.feeds.decoding.requests import DecodeAnswer, DecodeRequest
from brokerhouse.storage.engine import EngineError

_LIMIT_S = 300.0


def _is_closed(process: asyncio.subprocess.Process) -> bool:
    return process.stdin is None or process.stdin.is_closing()


class ValueDecoder:
    """One process for all feeds of a broker, started with the first request."""

    def __init__(self, registry: str = "") -> None:
        """`registry`: URL of the schema registry, or empty if there is none."""
        self.registry = registry
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def decode(self, request: DecodeRequest) -> DecodeAnswer:
        """Write the request's rows.

        Raises `EngineError` if that cannot be done now; the next request gets a new process if this
        one has ended.
        """
        async with self._turn:
            try:
                answer = await asyncio.wait_for(self._ask(request), _LIMIT_S)
            except BaseException as error:
                await self._end()  # whatever it still answers would be taken for the next answer
                if isinstance(error, (OSError, TimeoutError)):
                    raise EngineError(f"the decoder of {request.kind}: {error!r}") from error
                raise
            if not answer:
                code = await self._end()
                raise EngineError(f"the decoder of {request.kind} ended with code {code}")
        found = DecodeAnswer(**json.loads(answer))
        if found.failed:
            raise EngineError(f"{request.kind} cannot be decoded: {found.failed}")
        return found

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _ask(self, request: DecodeRequest) -> bytes:
        process = self._process
        if process is not None and (process.returncode is not None or _is_closed(process)):
            await self._end()  # it was killed since the last request
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "brokerhouse.feeds.decoding.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # an interrupt from the terminal is for the broker
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request.as_line())
        await self._process.stdin.drain()
        return await self._process.stdout.readline()

    async def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        if process.returncode is None:
            process.kill()
        return await process.wait()
