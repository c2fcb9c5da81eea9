"""`/metrics` of a single broker: what Prometheus gets when clients have done this and that."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.protocol.metadata import MetadataRequest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from brokerhouse.broker.api.topic_lookup import NO_ID
from tests.clients.metrics_page import documented, shown
from tests.conftest import OwnBrokers
from tests.support import messages
from tests.support.broker_process import BrokerProcess
from tests.support.group_consumer import consuming
from tests.support.messages import Target
from tests.support.prometheus import (
    Series,
    get,
    prometheus,
    promtool,
    scraped,
    value,
)
from tests.support.server_process import PROJECT
from tests.support.transactional import ConfluentProducer
from tests.support.waiting import until
from tests.support.wire import Closed, Wire, frame

DASHBOARD = json.loads((PROJECT / "docs/grafana/prometheus.json").read_text(encoding="utf-8"))
RULES = PROJECT / "docs/prometheus/alerts.yml"
NEVER_MS = "86400000"
ODD_NAMES = ['a "quoted" one', "back\\slash", "two\nlines", "\u2603 \x01 \x7f \u202e", "{a=b}", " "]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that nobody else uses, so that its numbers are known."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("metrics") / "data",
        {"group_initial_rebalance_delay_ms": "0", "auto_create_topics": "false"},
    )
    process.start()
    yield process
    process.stop()


@pytest.fixture
def target(quiet: BrokerProcess, topic: str) -> Target:
    with Wire(quiet) as wire:
        return messages.create_topic(wire, topic, 2)


def produce(broker: BrokerProcess, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 20})
    for number in range(count):
        producer.produce(topic, b"value %d" % number, partition=partition)
    assert producer.flush(30) == 0


# --- what the numbers say


def test_records_that_come_in_and_go_out_are_counted(quiet: BrokerProcess, target: Target) -> None:
    before = scraped(quiet.http_url)
    produce(quiet, target.name, 300)
    with consuming(quiet, f"{target.name}-group", target.name) as consumer:
        assert len(consumer.values_to_the_end(2)) == 300
    after = scraped(quiet.http_url)

    def grown(name: str, **labels: str) -> float:
        wanted = set(labels.items())
        return sum(
            number - before.get(name, {}).get(found, 0.0)
            for found, number in after[name].items()
            if wanted <= set(found)
        )

    assert grown("brokerhouse_appended_records_total") == 300
    assert grown("brokerhouse_fetched_records_total") == 300
    assert grown("brokerhouse_appended_bytes_total") == grown("brokerhouse_fetched_bytes_total")
    assert grown("brokerhouse_partition_reads_total", source="tail") >= 1
    produced = grown("brokerhouse_request_seconds_count", api="Produce")
    assert 1 <= produced <= 300
    assert grown("brokerhouse_request_bytes_total", api="Produce") > 300 * len(b"value 0")
    assert 1 <= grown("brokerhouse_lane_blocks_total") <= produced
    assert grown("brokerhouse_lane_insert_seconds_count") == grown("brokerhouse_lane_blocks_total")
    assert grown("brokerhouse_lane_insert_seconds_sum") > 0
    assert grown("brokerhouse_group_rebalances_total") >= 1


def test_latency_holds_the_wait_of_a_long_poll(quiet: BrokerProcess, target: Target) -> None:
    before = (
        value(quiet.http_url, "brokerhouse_request_seconds_sum", api="Fetch")
        if (_has_fetched(quiet))
        else 0.0
    )
    with Wire(quiet) as wire:
        # A millisecond more than is asserted: uvloop's timers count whole ones, and can end early.
        wire.ask(messages.fetch(target, 0, max_wait_ms=701, min_bytes=1), 13)
        after = value(quiet.http_url, "brokerhouse_request_seconds_sum", api="Fetch")
    assert 0.7 <= after - before < 60, "seconds, not milliseconds"


def _has_fetched(broker: BrokerProcess) -> bool:
    series = scraped(broker.http_url).get("brokerhouse_request_seconds_sum", {})
    return (("api", "Fetch"),) in series


def test_errors_are_counted_by_api_and_name(quiet: BrokerProcess, target: Target) -> None:
    def errors() -> Series:
        return scraped(quiet.http_url).get("brokerhouse_request_errors_total", {})

    def of(api: str, error: str) -> float:
        return errors().get((("api", api), ("error", error)), 0.0)

    before = {
        key: of(*key)
        for key in (
            ("Produce", "CORRUPT_MESSAGE"),
            ("Fetch", "OFFSET_OUT_OF_RANGE"),
            ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("Produce", "CONNECTION_CLOSED"),
        )
    }
    damaged = bytearray(messages.small_batch())
    damaged[-1] ^= 1
    unknown = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(topic_id=NO_ID, name="not-there")],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    with Wire(quiet) as wire:
        wire.ask(unknown, 12)
        wire.ask(messages.produce(target, bytes(damaged)), 13)
        wire.ask(messages.fetch(target, 1000), 13)
        wire.send_request(messages.produce(target, bytes(damaged), acks=0), 13)
        with pytest.raises(Closed):
            wire.receive()
    after = {key: of(*key) for key in before}
    assert {key: after[key] - before[key] for key in before} == {
        ("Produce", "CORRUPT_MESSAGE"): 1,
        ("Fetch", "OFFSET_OUT_OF_RANGE"): 1,
        ("Metadata", "UNKNOWN_TOPIC_OR_PARTITION"): 1,
        ("Produce", "CONNECTION_CLOSED"): 1,
    }


def test_connections_are_counted(quiet: BrokerProcess) -> None:
    def connections(name: str) -> float:
        return value(quiet.http_url, f"brokerhouse_connections{name}")

    opened, accepted = connections(""), connections("_accepted_total")
    aborted = connections("_aborted_total")
    with Wire(quiet), Wire(quiet) as other:
        until(lambda: connections("") == opened + 2)
        assert connections("_accepted_total") == accepted + 2
        other.send(frame(b"not a request"))
        until(lambda: connections("_aborted_total") == aborted + 1)
        assert connections("") == opened + 1
    until(lambda: connections("") == opened)


def test_groups_and_transactions_are_shown_by_their_state(
    quiet: BrokerProcess, target: Target
) -> None:
    def groups(state: str) -> float:
        return value(quiet.http_url, "brokerhouse_groups", state=state)

    def transactions(state: str) -> float:
        return value(quiet.http_url, "brokerhouse_transactions", state=state)

    stable, ongoing = groups("Stable"), transactions("Ongoing")
    members = value(quiet.http_url, "brokerhouse_group_members")
    with consuming(quiet, f"{target.name}-group", target.name) as consumer:
        consumer.values_to_the_end(2)
        assert groups("Stable") == stable + 1
        assert value(quiet.http_url, "brokerhouse_group_members") == members + 1
    assert groups("Stable") == stable

    producer = ConfluentProducer(quiet.kafka, f"{target.name}-id")
    producer.begin()
    producer.send(target.name, "record")
    producer.flush()
    assert transactions("Ongoing") == ongoing + 1
    assert value(quiet.http_url, "brokerhouse_partition_transactions_open") == 1
    assert value(quiet.http_url, "brokerhouse_transaction_oldest_seconds") > 0
    producer.commit()
    until(lambda: transactions("Ongoing") == ongoing)
    until(lambda: value(quiet.http_url, "brokerhouse_partition_transactions_open") == 0)


def test_lag_is_the_records_after_the_committed_offset(
    quiet: BrokerProcess, target: Target
) -> None:
    produce(quiet, target.name, 30)
    produce(quiet, target.name, 5, partition=1)
    with Wire(quiet) as wire:
        wire.ask(messages.commit("behind", (target, {0: 10, 1: 5})), 9)
    series = scraped(quiet.http_url)
    lag = {
        dict(labels)["partition"]: number
        for labels, number in series["brokerhouse_group_lag_records"].items()
        if dict(labels)["topic"] == target.name and dict(labels)["group"] == "behind"
    }
    assert lag == {"0": 20, "1": 0}
    end = series["brokerhouse_partition_end_offset"]
    assert end[(("partition", "0"), ("topic", target.name))] == 30


# --- what a scrape costs


def test_series_above_metrics_partitions_max_are_left_out_and_counted(
    own_broker: OwnBrokers,
) -> None:
    broker = own_broker(metrics_partitions_max="5")
    with Wire(broker) as wire:
        first = messages.create_topic(wire, "a", 4)
        second = messages.create_topic(wire, "b", 16)
    for partition in range(16):
        produce(broker, second.name, partition, partition=partition)
    long_name = "g" * 1000
    with Wire(broker) as wire:
        wire.ask(messages.commit("group", (second, dict.fromkeys(range(16), 0))), 9)
        wire.ask(messages.commit(long_name, (first, {0: 0})), 9)

    found = scraped(broker.http_url)
    lags = found["brokerhouse_group_lag_records"]
    assert sorted(lags.values()) == [11, 12, 13, 14, 15]
    assert found["brokerhouse_group_lags_left_out"][()] == 11 + 1, "one for the long name"
    ends = found["brokerhouse_partition_end_offset"]
    assert [dict(labels)["topic"] for labels in ends] == ["a"] * 4 + ["b"]
    assert found["brokerhouse_partitions"][()] == 20
    assert found["brokerhouse_partitions_left_out"][()] == 15
    assert long_name not in get(broker.http_url, "/metrics").text


def test_a_scrape_does_not_put_the_journal_into_the_table(own_broker: OwnBrokers) -> None:
    broker = own_broker(journal_insert_ms=NEVER_MS)
    with Wire(broker) as wire:
        target = messages.create_topic(wire, "kept")
    produce(broker, target.name, 50)

    for _ in range(3):
        assert value(broker.http_url, "brokerhouse_journal_waiting_rows", stream="log") == 50
        assert value(broker.http_url, "brokerhouse_journal_oldest_seconds", stream="log") > 0
        assert "brokerhouse_engine_rows" in scraped(broker.http_url)
    assert value(broker.http_url, "brokerhouse_journal_drained_rows_total", stream="log") == 0

    assert broker.sql("SELECT count() AS n FROM messages") == [{"n": 50}]
    assert value(broker.http_url, "brokerhouse_journal_waiting_rows", stream="log") == 0
    assert value(broker.http_url, "brokerhouse_journal_drained_rows_total", stream="log") == 50
    assert value(broker.http_url, "brokerhouse_engine_rows", table="messages") == 50


def test_scrapes_beside_each_other_are_answered_while_clients_work(
    quiet: BrokerProcess, target: Target
) -> None:
    done = threading.Event()

    def scrape() -> int:
        scrapes = 0
        while not done.is_set():
            assert scraped(quiet.http_url)
            scrapes += 1
        return scrapes

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(scrape) for _ in range(4)]
        produce(quiet, target.name, 2000)
        done.set()
        assert all(one.result() for one in running)


# --- formats, names, and who may read


def test_every_metric_is_explained_and_every_explanation_is_of_a_metric(
    quiet: BrokerProcess, target: Target
) -> None:
    produce(quiet, target.name, 1)
    with Wire(quiet) as wire:
        wire.ask(messages.commit("explained", (target, {0: 0})), 9)
        wire.ask(messages.fetch(target, 1000), 13)
    page = get(quiet.http_url, "/metrics")
    assert shown(page.text) == documented("Every broker") | documented("A single broker")


def test_promtool_accepts_names_and_types_of_the_metrics(quiet: BrokerProcess) -> None:
    text = get(quiet.http_url, "/metrics").text
    checked = promtool("check", "metrics", given=text)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("text/plain, application/openmetrics-text; version=x.y", "application/openmetrics-text"),
    ],
)
def test_the_format_follows_the_accept_header(
    quiet: BrokerProcess, accept: str, content_type: str
) -> None:
    page = get(quiet.http_url, "/metrics", {"Accept": accept})
    assert page.status == 200
    assert page.content_type.startswith(content_type)
    parse = (
        openmetrics_families if "openmetrics" in content_type else text_string_to_metric_families
    )
    names = {family.name for family in parse(page.text)}
    assert "brokerhouse_connections" in names


def test_web_pages_of_other_sites_may_not_read_the_metrics(quiet: BrokerProcess) -> None:
    for headers in (
        {"Origin": "https://elsewhere.example.com"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "rebound.example.com"},
    ):
        page = get(quiet.http_url, "/metrics", headers)
        assert page.status == 403
        assert "brokerhouse_connections" not in page.text
        assert get(quiet.http_url, "/live", headers).status == 200


def test_a_broker_that_serves_clients_is_live_and_ready(quiet: BrokerProcess) -> None:
    for path in ("/live", "/ready", "/ping"):
        assert get(quiet.http_url, path)[:2] == (200, "Ok.\n")


# --- Prometheus


def test_prometheus_scrapes_a_broker_with_odd_names_and_evaluates_the_alerts(
    quiet: BrokerProcess, target: Target, tmp_path: Path
) -> None:
    produce(quiet, target.name, 40)
    with Wire(quiet) as wire:
        for number, group in enumerate(ODD_NAMES):
            wire.ask(messages.commit(group, (target, {0: number})), 9)
    address = quiet.http_url.removeprefix("http://")
    lag = f'brokerhouse_group_lag_records{{topic="{target.name}"}}'
    with prometheus(tmp_path, [address], [RULES]) as server:

        def lags() -> dict[str, float]:
            return {dict(labels)["group"]: number for labels, number in server.query(lag).items()}

        # A scrape that takes longer than a second fails: until the next one nothing is known.
        expected = {group: 40 - number for number, group in enumerate(ODD_NAMES)}
        until(lambda: server.targets() == [("up", "")] and lags() == expected, "each group's lag")
        until(lambda: server.query("sum(rate(brokerhouse_event_loop_delay_seconds_count[10s]))"))

        def rules() -> list[dict[str, str]]:
            return [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]

        until(lambda: all(rule["health"] != "unknown" for rule in rules()), "all rules evaluated")
        assert [(rule["name"], rule["lastError"]) for rule in rules() if "lastError" in rule] == []

        def silent() -> set[str]:
            return {title for title, query in panels() if not server.query(query)}

        # Those need more than one scrape, or a cluster, or are 0 and left out.
        may_be = {"Errors per second", "Slots served", "Sessions and shards, 1 is up"}
        until(lambda: silent() <= may_be, "each other panel shows something", every_s=0.5)


def panels() -> list[tuple[str, str]]:
    """The queries of the dashboard, with Grafana's variables replaced."""
    return [
        (
            panel["title"],
            target["expr"]
            .replace("$__rate_interval", "5m")
            .replace("$job", "brokerhouse")
            .replace("$instance", ".*"),
        )
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]


def test_alert_rules_and_dashboard_name_only_existing_metrics() -> None:
    there_are = {"up", "process_start_time_seconds", "process_cpu_seconds_total"}
    there_are |= {"process_resident_memory_bytes"}
    for section in ("Every broker", "A single broker", "A broker of a cluster"):
        for name, (kind, _, _) in documented(section).items():
            suffixes = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
            there_are |= {name + suffix for suffix in suffixes}
    text = RULES.read_text(encoding="utf-8") + " ".join(query for _, query in panels())
    named = set(re.findall(r"\b(?:brokerhouse|process)_\w+", text))
    assert named <= there_are


def test_promtool_accepts_the_alert_rules() -> None:
    checked = promtool("check", "rules", str(RULES))
    assert checked.returncode == 0, checked.stdout + checked.stderr
