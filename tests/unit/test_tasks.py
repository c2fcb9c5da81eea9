"""common/tasks.py: repeated work, waits with a limit, growing pauses, outages logged once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from brokerhouse.common.tasks import Backoff, Outage, Periodic, cancel, event_within, in_turns

LIMIT_S = 30.0


class Rounds:
    """Work that counts its runs, and fails when it is told to."""

    def __init__(self) -> None:
        self.done = 0
        self.ran = asyncio.Event()
        self.error: Exception | None = None

    async def run(self) -> None:
        if self.error is not None:
            raise self.error
        self.done += 1
        self.ran.set()


async def test_an_event_that_is_set_in_time_ends_the_wait() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_soon(event.set)

    assert await event_within(event, LIMIT_S)


async def test_an_event_that_is_never_set_ends_the_wait_at_its_limit() -> None:
    assert not await event_within(asyncio.Event(), 0.01)


async def test_a_cancelled_wait_is_cancelled() -> None:
    waiting = asyncio.create_task(event_within(asyncio.Event(), LIMIT_S))
    await asyncio.sleep(0)
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_work_is_repeated_until_it_is_closed() -> None:
    rounds = Rounds()
    periodic = Periodic("rounds", 0.001, rounds.run)
    periodic.start()
    async with asyncio.timeout(LIMIT_S):
        while rounds.done < 3:
            rounds.ran.clear()
            await rounds.ran.wait()
    await periodic.close()
    done = rounds.done
    await asyncio.sleep(0.01)

    assert rounds.done == done
    assert [task.done() for task in periodic.background] == [True]


async def test_the_first_run_waits_for_the_first_pause_unless_told_otherwise() -> None:
    late, early = Rounds(), Rounds()
    waiting = Periodic("late", LIMIT_S, late.run)
    at_once = Periodic("early", LIMIT_S, early.run, at_once=True)
    waiting.start()
    at_once.start()
    async with asyncio.timeout(LIMIT_S):
        await early.ran.wait()

    assert (late.done, early.done) == (0, 1)
    await waiting.close()
    await at_once.close()


async def test_an_error_that_the_work_does_not_handle_ends_the_task_with_it() -> None:
    rounds = Rounds()
    rounds.error = ValueError("a bug")
    periodic = Periodic("rounds", 0.0, rounds.run)
    periodic.start()
    [task] = periodic.background

    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(task, LIMIT_S)
    await periodic.close()


async def test_the_pause_may_be_a_function_that_is_called_each_time() -> None:
    rounds, pauses = Rounds(), iter([0.0, LIMIT_S])
    periodic = Periodic("rounds", lambda: next(pauses), rounds.run)
    periodic.start()
    async with asyncio.timeout(LIMIT_S):
        await rounds.ran.wait()
    await periodic.close()

    assert rounds.done == 1


async def test_work_may_be_a_plain_function() -> None:
    ran = asyncio.Event()
    periodic = Periodic("plain", 0.0, ran.set)
    periodic.start()

    assert await event_within(ran, LIMIT_S)
    await periodic.close()


async def test_closing_before_the_start_does_nothing() -> None:
    periodic = Periodic("never", 0.0, Rounds().run)
    await periodic.close()
    await cancel(None)

    assert periodic.background == []


def test_pauses_double_up_to_their_longest_and_begin_again() -> None:
    backoff = Backoff(0.05, 0.3)

    assert [backoff.advance() for _ in range(5)] == [0.05, 0.1, 0.2, 0.3, 0.3]
    backoff.reset()
    assert (backoff.next_s, backoff.advance()) == (0.05, 0.05)


def test_a_pause_after_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    backoff = Backoff(0.05, 0.3)
    log = logging.getLogger("test")

    pauses = [backoff.after(OSError("no route"), log, "the insert fails") for _ in range(2)]

    assert pauses == [0.05, 0.1]
    assert caplog.messages == [
        "the insert fails; retrying in 0.05 s: no route",
        "the insert fails; retrying in 0.10 s: no route",
    ]


def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage(logging.getLogger("test"), "topics cannot be read", "topics are read again")
    outage.worked()
    for _ in range(3):
        outage.failed(OSError("no route"))
    outage.worked()
    outage.worked()

    assert [record.message for record in caplog.records] == [
        "topics cannot be read: no route",
        "topics are read again",
    ]


async def test_a_long_loop_yields_to_other_tasks_after_every_few_steps() -> None:
    seen: list[str] = []

    async def other() -> None:
        for _ in range(2):
            seen.append("other")
            await asyncio.sleep(0)

    async def note(text: str) -> None:
        seen.append(text)

    task = asyncio.create_task(other())
    async for number in in_turns(range(5), 2):
        await note(str(number))
    await task

    assert seen == ["0", "1", "other", "2", "3", "other", "4"]
