"""tools/with-clock: a command, its processes and the embedded ClickHouse on another day."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITH_CLOCK = Path(__file__).parents[2] / "tools/with-clock"
SEEN = """
import ctypes, subprocess, sys, time
from chdb.session import Session

with Session(sys.argv[1]) as engine:
    print(time.strftime("%Y-%m-%d", time.gmtime()))
    print(subprocess.check_output(["date", "-u", "+%F"], text=True), end="")
    print(str(engine.query("SELECT toDate(now('UTC'))", "TSV")), end="")

# ClickHouse waits like this: on a condition, until a moment of the wall clock.
libc, condition, mutex = ctypes.CDLL(None), bytes(64), bytes(64)
libc.pthread_mutex_lock(mutex)
until, begun = time.time() + 0.05, time.monotonic()
moment = (ctypes.c_long * 2)(int(until), int(until % 1 * 1e9))
libc.pthread_cond_timedwait(condition, mutex, moment)
print("waited" if 0.04 < time.monotonic() - begun < 30 else "did not wait")
"""


def with_clock(when: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [WITH_CLOCK, when, *command], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("day", ["2028-02-29", "2020-01-01"])
def test_a_command_its_processes_and_the_engine_see_the_given_day(tmp_path: Path, day: str) -> None:
    done = with_clock(f"{day} 12:00", sys.executable, "-c", SEEN, str(tmp_path / "data"))
    assert (done.stdout.split(), done.returncode) == ([day, day, day, "waited"], 0), done.stderr


def test_with_clock_exits_with_the_code_of_the_command() -> None:
    assert with_clock("+7 days", "sh", "-c", "exit 7").returncode == 7


def test_with_clock_runs_no_command_if_the_time_is_not_understood(tmp_path: Path) -> None:
    done = with_clock("soonish", "touch", str(tmp_path / "run"))
    assert done.returncode != 0
    assert "soonish" in done.stderr
    assert not (tmp_path / "run").exists()
