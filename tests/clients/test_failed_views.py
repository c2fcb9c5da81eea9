"""Materialized views on the log that cannot be filled: nothing is lost in silence."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer

from tests.clients.conftest import RunServer
from tests.support.broker_process import NEVER_MS, BrokerProcess
from tests.support.command_line import complaint, output
from tests.support.server_process import PROJECT
from tests.support.sql_client import PASSWORD, USER, WRITER, Answer, ask, read, write
from tests.support.waiting import until

pytestmark = pytest.mark.one_broker("a broker of a cluster has no engine of its own")


INSERT_MS = "1000"


@pytest.fixture
def insert_ms() -> str:
    """How long records wait in the journal. A test may be parametrized with another time."""
    return INSERT_MS


@pytest.fixture(scope="module")
def shared(run_server: RunServer) -> Iterator[BrokerProcess]:
    """One broker for all tests with the usual time. A test may kill it and start it again."""
    with run_server(num_partitions="2", journal_insert_ms=INSERT_MS) as process:
        yield process


@pytest.fixture
def broker(request: pytest.FixtureRequest, insert_ms: str) -> Iterator[BrokerProcess]:
    """With two views on the topic `events` that have no rows yet."""
    if insert_ms != INSERT_MS:
        own_server = request.getfixturevalue("own_server")
        yield with_views(own_server(num_partitions="2", journal_insert_ms=insert_ms))
        return
    shared: BrokerProcess = request.getfixturevalue("shared")
    yield with_views(shared)
    if not shared.running:
        shared.start()
    for name in failed(shared):
        output("views", "drop", name, *login(shared))
    kinds = {"VIEW": "engine = 'MaterializedView'", "TABLE": "engine != 'MaterializedView'"}
    for kind, condition in kinds.items():
        names = f"SELECT name FROM system.tables WHERE database = 'default' AND {condition}"
        for name in column(shared, names):
            if not name.startswith(".inner"):
                write(shared, f"DROP {kind} IF EXISTS default.`{name}` SYNC")


def with_views(made: BrokerProcess) -> BrokerProcess:
    write(made, "CREATE TABLE default.good (value String) ENGINE = MergeTree ORDER BY value")
    write(made, "CREATE TABLE default.ids (id UInt64) ENGINE = MergeTree ORDER BY id")
    write(
        made,
        "CREATE MATERIALIZED VIEW default.goods TO default.good"
        " AS SELECT assumeNotNull(value) AS value FROM brokerhouse.messages WHERE topic = 'events'",
    )
    write(
        made,
        "CREATE MATERIALIZED VIEW default.typed TO default.ids AS SELECT"
        " toUInt64(assumeNotNull(value)) AS id FROM brokerhouse.messages WHERE topic = 'events'",
    )
    return made


def send(broker: BrokerProcess, *values: str, topic: str = "events", partition: int = 0) -> None:
    """They are in the table when this returns."""
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    for value in values:
        producer.send(topic, value.encode(), partition=partition).get(30)
    producer.close()
    read(broker, "SELECT count() FROM messages")


def column(broker: BrokerProcess, sql: str) -> list[str]:
    return read(broker, f"{sql} FORMAT TSVRaw").splitlines()


def failed(broker: BrokerProcess) -> list[str]:
    return column(broker, "SELECT concat(database, '.', view) FROM failed_views")


def login(broker: BrokerProcess) -> list[str]:
    return ["--http", broker.http_url, "--user", USER, "--password", PASSWORD]


IDS = "SELECT id FROM default.ids ORDER BY id"
TOLERANT = (
    "SELECT toUInt64OrZero(assumeNotNull(value)) AS id FROM brokerhouse.messages"
    " WHERE topic = 'events'"
)


def test_a_failing_view_stops_alone_and_a_repair_fills_it_from_there_on(
    broker: BrokerProcess,
) -> None:
    send(broker, "1", "2")
    assert column(broker, IDS) == ["1", "2"]
    assert output("views", "list", "--http", broker.http_url) == "no view has failed\n"
    before = column(broker, "SELECT count() FROM messages WHERE topic = 'events'")

    send(broker, "no number")
    send(broker, "3", "4", partition=1)
    send(broker, "5", topic="others")
    send(broker, "6")

    values = ["1", "2", "3", "4", "6", "no number"]
    assert column(broker, "SELECT value FROM default.good ORDER BY value") == values
    assert column(broker, IDS) == ["1", "2"]
    assert failed(broker) == ["default.typed"]
    # Said once in a while (common/counted_lines.py), so perhaps for another test.
    assert "default.typed failed and was stopped" in broker.log(0, 1 << 20)
    (error,) = column(broker, "SELECT error FROM failed_views")
    assert "Cannot parse string 'no number' as UInt64" in error
    assert column(broker, "SELECT missed FROM failed_views") == [
        f"[('events',0,{before[0]}),('events',1,0),('others',0,0)]"
    ]
    listed = output("views", "list", "--http", broker.http_url)
    assert "default.typed" in listed
    assert f"events-0 {before[0]}" in listed

    wrong = complaint(1, "views", "repair", "default.typed", *login(broker))
    assert "Cannot parse string 'no number'" in wrong
    assert column(broker, IDS) == ["1", "2"], "it would fail again, so nothing is filled"

    broker.kill()
    broker.start()
    send(broker, "7")
    assert failed(broker) == ["default.typed"]

    said = output("views", "repair", "default.typed", "--query", TOLERANT, *login(broker))
    assert said == "default.typed is filled again; records that it had missed: 6\n"
    assert failed(broker) == []
    assert column(broker, IDS) == ["0", "1", "2", "3", "4", "6", "7"]
    send(broker, "8")
    assert column(broker, IDS) == ["0", "1", "2", "3", "4", "6", "7", "8"]
    assert column(broker, "SELECT value FROM default.good ORDER BY value")[-1] == "no number"


def test_a_view_with_an_inner_table_is_repaired_while_records_come_in(
    broker: BrokerProcess,
) -> None:
    write(
        broker,
        "CREATE MATERIALIZED VIEW default.`own one` ENGINE = MergeTree ORDER BY id AS"
        " SELECT toUInt64(assumeNotNull(value)) AS id, offset FROM brokerhouse.messages"
        " WHERE topic = 'events'",
    )
    send(broker, "no number")
    assert failed(broker) == ["default.own one", "default.typed"]
    producer = KafkaProducer(bootstrap_servers=broker.kafka, linger_ms=1)
    for n in range(1, 5001):
        producer.send("events", b"%d" % n, partition=0)
        if n == 2500:
            query = TOLERANT.replace(" AS id", " AS id, offset")
            output("views", "repair", "default.own one", "--query", query, *login(broker))
    producer.close()
    assert failed(broker) == ["default.typed"]
    assert column(broker, "SELECT count(), uniqExact(offset), max(id) FROM default.`own one`") == [
        "5001\t5001\t5000"
    ]


@pytest.mark.test_all
def test_repairs_of_a_view_at_the_same_time_fill_it_once(broker: BrokerProcess) -> None:
    send(broker, "no number", *map(str, range(1, 20)))
    slow = TOLERANT.replace("SELECT ", "SELECT sleepEachRow(0.02) + ", 1)

    def repair(_: int) -> Answer:
        return ask(
            broker, slow, path="/views/repair", database="default", view="typed", headers=WRITER
        )

    with ThreadPoolExecutor() as threads:
        answers = sorted(threads.map(repair, range(3)), key=lambda answer: answer.code)

    assert [answer.code for answer in answers] == [0, 60, 60]
    assert answers[0].text == '{"missed": 20}'
    assert column(broker, IDS) == [str(n) for n in range(20)]
    assert failed(broker) == []


def test_only_a_writer_repairs_a_view_and_only_with_tables_that_they_may_read(
    broker: BrokerProcess,
) -> None:
    send(broker, "no number")

    def repair(query: str, view: str = "typed", **more: Any) -> Answer:
        return ask(broker, query, path="/views/repair", database="default", view=view, **more)

    assert repair("").code == 497
    assert repair("", "goods", headers=WRITER).code == 60
    for hostile in (
        "SELECT 1 AS id FROM file('/etc/passwd', 'LineAsString')",
        "SELECT 1 AS id FROM url('http://127.0.0.1:1/', 'CSV', 'a String')",
        "SELECT 1 AS id; DROP TABLE default.ids",
        "SELECT 1 AS id FROM no_such_table",
        "",
    ):
        assert repair(hostile, headers=WRITER).code > 0, hostile
        assert failed(broker) == ["default.typed"]
    send(broker, "5")
    assert column(broker, IDS) == []
    assert repair(TOLERANT, headers=WRITER).text == '{"missed": 2}'
    assert column(broker, IDS) == ["0", "5"]


def test_a_failed_view_can_be_dropped_and_created_again(broker: BrokerProcess) -> None:
    send(broker, "no number")
    assert output("views", "drop", "default.typed", *login(broker)) == "dropped default.typed\n"
    assert failed(broker) == []
    write(broker, f"CREATE MATERIALIZED VIEW default.typed TO default.ids AS {TOLERANT}")
    send(broker, "5")
    assert column(broker, IDS) == ["5"]
    wrong = complaint(1, "views", "drop", "default.typed", *login(broker))
    assert "no view default.typed has failed" in wrong


SLOW = (
    "CREATE MATERIALIZED VIEW default.slow TO default.late AS SELECT assumeNotNull(value) AS value"
    " FROM brokerhouse.messages WHERE topic = 'events' AND NOT sleepEachRow(2)"
)
LATE = "SELECT value FROM default.late ORDER BY value"
BEHIND = "SELECT value FROM default.later ORDER BY value"


@pytest.fixture
def slow_view(broker: BrokerProcess) -> BrokerProcess:
    """A view that takes two seconds for a record, and one on its table."""
    for table in ("late", "later"):
        write(broker, f"CREATE TABLE default.{table} (value String) ENGINE = Log")
    write(
        broker,
        "CREATE MATERIALIZED VIEW default.behind TO default.later"
        " AS SELECT value FROM default.late",
    )
    write(broker, SLOW)
    return broker


def folder_of(broker: BrokerProcess, table: str) -> Path:
    sql = f"SELECT data_paths[1] FROM system.tables WHERE table = '{table}' FORMAT TSVRaw"
    return Path(ask(broker, sql, headers=WRITER).text.strip())


def inserted_parts(folder: Path) -> set[str]:
    """The parts that were not made by merges."""
    return {path.name for path in folder.glob("2*_0")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def stands_still(broker: BrokerProcess) -> bool:
    """Whether a pause has reached every thread."""
    threads = Path(f"/proc/{broker.pid}/task").glob("*/stat")
    with suppress(FileNotFoundError, ProcessLookupError):  # one has ended meanwhile
        return all(path.read_text().rpartition(")")[2].split()[0] == "T" for path in threads)
    return False


def killed_in_a_round(broker: BrokerProcess, *records: tuple[str, str]) -> bool:
    """Produce one record for each (topic, value), and kill the broker when they are in the log.

    False: it was not killed, because the slow view has them already.
    """
    messages, late = folder_of(broker, "messages"), folder_of(broker, "late")
    parts, rows = inserted_parts(messages), contents(late)
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    for topic, value in records:
        producer.send(topic, value.encode(), partition=0).get(30)
    with ThreadPoolExecutor(1) as threads:
        reader = threads.submit(ask, broker, "SELECT 1")  # begins the round
        until(lambda: bool(inserted_parts(messages) - parts), "the log has the records")
        broker.pause()
        until(lambda: stands_still(broker))
        if contents(late) == rows:
            broker.kill()
            producer.close(0)
            return True
        broker.resume()
        assert reader.result().status == 200
    producer.close()
    return False


@pytest.mark.test_all
@pytest.mark.parametrize("insert_ms", [NEVER_MS])
def test_views_that_a_kill_interrupts_are_in_doubt_until_they_are_repaired(
    slow_view: BrokerProcess,
) -> None:
    broker = slow_view
    send(broker, "1")
    values = ["1", "2"]
    while not killed_in_a_round(broker, ("others", "a"), ("events", values[-1])):
        values.append(str(len(values) + 1))
    broker.start()

    events = "SELECT value FROM messages WHERE topic = 'events' ORDER BY offset"
    assert column(broker, events) == values
    assert column(broker, LATE) == values[:-1]
    last = "SELECT max(offset) FROM messages WHERE topic = '{}'"
    end, other = (int(column(broker, last.format(topic))[0]) for topic in ("events", "others"))
    assert failed(broker) == [f"default.{name}" for name in ("behind", "goods", "slow", "typed")]
    assert column(broker, "SELECT DISTINCT missed, in_doubt FROM failed_views") == [
        f"[]\t[('events',0,{end},{end + 1}),('others',0,{other},{other + 1})]"
    ]
    lines = [line for line in broker.log().splitlines() if "killed while" in line]
    assert len(lines) == 1
    assert "default.slow" in lines[0]
    assert f"events-0 {end} to {end}, others-0 {other} to {other}" in lines[0]
    assert f"events-0 {end} to {end}" in output("views", "list", "--http", broker.http_url)

    unclear = complaint(1, "views", "repair", "default.slow", *login(broker))
    assert "--in-doubt" in unclear
    fill = ["--in-doubt", "fill", *login(broker)]
    keep = ["--in-doubt", "keep", *login(broker)]
    assert "by hand" in complaint(1, "views", "repair", "default.behind", *fill)
    said = output("views", "repair", "default.slow", *fill)
    assert said == "default.slow is filled again; records that it had missed: 2\n"
    assert column(broker, LATE) == values
    assert column(broker, BEHIND) == values, "it is filled with the other"
    assert failed(broker) == ["default.goods", "default.typed"]
    for name, table in (("goods", "good"), ("typed", "ids")):
        has = column(broker, f"SELECT count() FROM default.{table}") == [str(len(values))]
        output("views", "repair", f"default.{name}", *(keep if has else fill))
    assert failed(broker) == []

    values.append(str(len(values) + 1))
    send(broker, values[-1])
    for sql in (LATE, BEHIND, IDS, "SELECT value FROM default.good ORDER BY value"):
        assert column(broker, sql) == values, "no record is missed, none comes twice"


@pytest.mark.test_all
@pytest.mark.parametrize("insert_ms", [NEVER_MS])
def test_views_are_not_in_doubt_after_a_kill_between_inserts(
    broker: BrokerProcess,
) -> None:
    send(broker, "1")
    producer = KafkaProducer(bootstrap_servers=broker.kafka)
    producer.send("events", b"2", partition=0).get(30)  # it is in the journal alone
    broker.kill()
    producer.close(0)
    broker.start()
    assert column(broker, IDS) == ["1", "2"]
    assert failed(broker) == []
    broker.kill()
    broker.start()
    assert failed(broker) == []
    assert "killed while" not in broker.log()


def test_the_view_of_the_documentation_is_filled(broker: BrokerProcess) -> None:
    page = (PROJECT / "docs" / "sql.md").read_text()
    section = page.partition("## Materialized views on the log")[2]
    statements = section.partition("```sql\n")[2].partition("```")[0]
    for statement in filter(str.strip, statements.split(";")):
        write(broker, statement)
    send(broker, '{"id": 7, "amount": 12.5}', "no JSON", topic="orders")
    rows = column(broker, "SELECT id, amount, at > 0 FROM shop.orders ORDER BY id")
    assert rows == ["0\t0\t1", "7\t12.5\t1"]
