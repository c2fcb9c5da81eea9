"""`brokerhouse sql` with the data of an INSERT on standard input."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.command_line import COMMAND, LIMIT_S, Ended, environment, run
from tests.support.server_process import PROJECT
from tests.support.sql_client import MIB, PASSWORD, USER, read, write

SMALL_MIB = 120  # what the command may grow to, less than the file that it sends
ROWS = 300_000


@pytest.fixture
def own(server: BrokerProcess) -> Iterator[str]:
    """An empty table that may be written."""
    write(server, "CREATE TABLE default.inserted (a Int64, b String) ENGINE = MergeTree ORDER BY a")
    yield "default.inserted"
    write(server, "DROP TABLE default.inserted SYNC")


def insert(server: BrokerProcess, query: str, stdin: str = "", how: object = run) -> Ended:
    assert callable(how)
    ended: Ended = how(
        *("sql", query, "--http", server.http, "--user", USER),
        stdin=stdin,
        BROKERHOUSE_SQL_PASSWORD=PASSWORD,
    )
    return ended


@pytest.mark.parametrize(
    ("query", "stdin"),
    [
        ("INSERT INTO default.inserted FORMAT CSVWithNames", "b,a\nx,1\ny,2\n"),
        ("INSERT INTO default.inserted (b, a) FORMAT TSV", "x\t1\ny\t2"),
        ("INSERT INTO default.inserted FORMAT JSONEachRow;", '{"a":1,"b":"x"}{"a":2,"b":"y"}'),
        ("INSERT INTO default.inserted VALUES", "(1, 'x'), (2, 'y')"),
        ("INSERT INTO default.inserted VALUES (1, 'x'), (2, 'y')", "not read"),
        ("INSERT INTO default.inserted SETTINGS max_threads = 1 FORMAT CSV", "1,x\n2,y\n"),
        (
            "INSERT INTO default.inserted"
            " SELECT number + 1, ['x', 'y'][number + 1] FROM numbers(2)",
            "not read",
        ),
        ("-", "INSERT INTO default.inserted FORMAT CSV\n1,x\n2,y\n"),
        ("-", "INSERT INTO default.inserted VALUES (1, 'x'), (2, 'y')"),
    ],
)
def test_an_insert_takes_its_data_from_standard_input(
    server: BrokerProcess, own: str, query: str, stdin: str
) -> None:
    ended = insert(server, query, stdin)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert read(server, f"SELECT * FROM {own} ORDER BY a") == "1\tx\n2\ty\n"


@pytest.mark.parametrize(
    ("query", "stdin", "why"),
    [
        ("INSERT INTO default.inserted FORMAT CSV", "1,x\nzwei,y\n", "Cannot parse input"),
        ("INSERT INTO default.nosuch FORMAT CSV", "1,x\n", "default.nosuch does not exist"),
        ("INSERT INTO default.inserted FORMAT NoSuch", "1,x\n", "Unknown format NoSuch"),
        ("INSERT INTO brokerhouse.messages FORMAT CSV", "1,x\n", "Not enough privileges"),
    ],
)
def test_an_insert_that_fails_prints_why(
    server: BrokerProcess, own: str, query: str, stdin: str, why: str
) -> None:
    ended = insert(server, query, stdin)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("Error: ")
    assert why in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert read(server, f"SELECT count() FROM {own}") == "0\n"


MEASURED = """
import atexit, re
from pathlib import Path
from brokerhouse.broker.cli.main import main

def print_peak():
    print(re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])

atexit.register(print_peak)
main()
"""
"""The command; at its end it prints the most memory that it had, in KiB. What the system says of a
child includes what its parent had."""


def test_an_insert_streams_a_large_file(server: BrokerProcess, own: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w") as file:
        file.writelines(f"{n},{'x' * 500}\n" for n in range(ROWS))
    assert path.stat().st_size > SMALL_MIB * MIB
    with path.open("rb") as file:
        ended = subprocess.run(
            [sys.executable, "-c", MEASURED, "sql", f"INSERT INTO {own} FORMAT CSV"],
            cwd=PROJECT,
            env=environment(
                BROKERHOUSE_SQL_USER=USER,
                BROKERHOUSE_SQL_PASSWORD=PASSWORD,
                BROKERHOUSE_HTTP=server.http,
            ),
            stdin=file,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert read(server, f"SELECT count(), sum(a) FROM {own}") == f"{ROWS}\t{sum(range(ROWS))}\n"
    assert int(ended.stdout) < SMALL_MIB * 1024


def test_an_insert_on_a_terminal_asks_for_its_data(server: BrokerProcess) -> None:
    ours, theirs = pty.openpty()
    ended = subprocess.run(
        [*COMMAND, "sql", "INSERT INTO default.inserted FORMAT CSV", "--http", server.http],
        cwd=PROJECT,
        env=environment(),
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert ended.returncode == 2
    assert "the INSERT has no data: send it on standard input" in ended.stderr
