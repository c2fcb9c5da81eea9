"""Finds a broker that answers among those of --bootstrap.

All addresses are asked at the same time, and the first answer wins: a broker that is dead, or that
is stopped and only accepts connections, delays nothing. Kafka's client tries them one after the
other, and does not say what is wrong with each.

The question is an ApiVersions request of version 0, which any broker answers without a login:

    +-------------+----------------+-----------------+--------------------+----------------+
    | length (i32)| api key 18 (i16)| version 0 (i16) | correlation id(i32)| client id (str)|
    +-------------+----------------+-----------------+--------------------+----------------+

The answer begins with its length and the correlation id.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
from collections.abc import Sequence

import click

from brokerhouse.common.address import Address

CONNECT_TIMEOUT_S = 5.0
_AGAIN_S = 0.2
_CORRELATION_ID = 0x62726F6B
_CLIENT_ID = b"brokerhouse"
_BODY = struct.pack(f">hhih{len(_CLIENT_ID)}s", 18, 0, _CORRELATION_ID, len(_CLIENT_ID), _CLIENT_ID)
_REQUEST = struct.pack(">i", len(_BODY)) + _BODY
_TLS_ALERT = 0x15


class _Useless(Exception):
    """Why an address will not do, in a few words; `hint` says what to do about it."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


_START_ONE = "start one with `brokerhouse serve`, or name another with --bootstrap"
_NAME_KAFKA = "name the address of the broker's setting `kafka` with --bootstrap"


def answering(addresses: Sequence[Address], timeout_s: float) -> Address:
    """The first broker that answers. Raises click's error, in which each address has its reason."""
    return asyncio.run(_first(addresses, timeout_s))


async def _first(addresses: Sequence[Address], timeout_s: float) -> Address:
    asked = {asyncio.create_task(_ask(address, timeout_s)): address for address in addresses}
    try:
        for done in asyncio.as_completed(list(asked)):
            try:
                return await done
            except _Useless:
                continue
    finally:
        for task in asked:
            task.cancel()
    failed = [(address, task.exception()) for task, address in asked.items()]
    reasons = ", ".join(f"{address} ({error})" for address, error in failed)
    hints = dict.fromkeys(error.hint for _, error in failed if isinstance(error, _Useless))
    raise click.ClickException(f"no broker at {reasons}: {'; '.join(hints)}")


async def _ask(address: Address, timeout_s: float) -> Address:
    """The address, when its broker has answered. A connection that is closed is tried again."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout_at(deadline):
            answer = await _first_bytes(address)
    except TimeoutError:
        raise _Useless(
            f"no answer within {timeout_s:g} s",
            "look at the broker's log, wait longer with --timeout, or name another with"
            " --bootstrap",
        ) from None
    if answer.startswith(b"HTTP/"):
        raise _Useless("speaks HTTP, not Kafka", _NAME_KAFKA)
    if answer[0] == _TLS_ALERT:
        raise _Useless("needs TLS, which these commands do not support", _NAME_KAFKA)
    if answer[4:8] != struct.pack(">i", _CORRELATION_ID):
        raise _Useless("does not speak Kafka's protocol", _NAME_KAFKA)
    return address


async def _first_bytes(address: Address) -> bytes:
    """Up to 8 bytes of an answer, at least one."""
    while True:
        if answer := await _answer(address):
            return answer
        await asyncio.sleep(_AGAIN_S)


async def _answer(address: Address) -> bytes:
    """The first 8 bytes of an answer; fewer if it ends before; none if it is closed at once."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address)
    except TimeoutError:
        raise _Useless("cannot be reached", _START_ONE) from None
    except socket.gaierror as error:
        raise _Useless(error.strerror or str(error), "name another with --bootstrap") from error
    except OSError as error:
        raise _Useless(_reason(error), _START_ONE) from error
    try:
        writer.write(_REQUEST)
        return await reader.readexactly(8)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except OSError:
        return b""
    finally:
        writer.close()


def _reason(error: OSError) -> str:
    """asyncio's own texts repeat the address; of a name with several it raises them as one text."""
    found = re.search(r"Errno (\d+)", str(error))
    number = error.errno or (int(found[1]) if found else None)
    return os.strerror(number) if number else str(error)
