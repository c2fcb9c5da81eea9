"""Waits for a condition by polling it until it is true: the longer it takes, the less often.

The limit only ends a test that hangs. It is far longer than a busy machine needs, so no result
depends on the speed of the machine. A test whose subject is a time gives a limit of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

LIMIT_S = 60.0
LOOK_AGAIN_S = 0.01
_LOOK_AFTER = 0.1
"""After this part of the time that has passed. A look may cost the process under test much."""
_LOOK_AGAIN_MAX_S = 0.1


def until(
    condition: Callable[[], object],
    what: str = "",
    limit_s: float = LIMIT_S,
    every_s: float = LOOK_AGAIN_S,
) -> float:
    """Wait until `condition()` is true. Returns how many seconds that took.

    `what` is the condition in words, for the message of the AssertionError after `limit_s`.
    `every_s`: the shortest time between two looks.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + limit_s, _not_in_time(what, limit_s)
        time.sleep(_pause_s(time.monotonic() - began, every_s))
    return time.monotonic() - began


async def until_async(
    condition: Callable[[], bool | Awaitable[bool]], what: str = "", limit_s: float = LIMIT_S
) -> float:
    """`until` in an event loop, by the loop's own clock; the condition may be a coroutine."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(limit_s):
            while not await _holds(condition):  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(LOOK_AGAIN_S)
    except TimeoutError:
        raise AssertionError(_not_in_time(what, limit_s)) from None
    return loop.time() - began


def _pause_s(passed_s: float, least_s: float) -> float:
    return max(least_s, min(passed_s * _LOOK_AFTER, _LOOK_AGAIN_MAX_S))


async def _holds(condition: Callable[[], bool | Awaitable[bool]]) -> bool:
    found = condition()
    return found if isinstance(found, bool) else await found


def _not_in_time(what: str, limit_s: float) -> str:
    return f"not within {limit_s:g} s: {what or 'the condition that is waited for'}"
