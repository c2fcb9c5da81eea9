"""The figures of `make bench-kafka`: what is read from Kafka's tools, medians, tables."""

from pathlib import Path

import pytest

from bench.kafka.figures import (
    Consumed,
    Figure,
    Produced,
    Table,
    UnreadableOutput,
    consumed,
    growth,
    percentile,
    produced,
    short,
)
from bench.samples import directory_bytes

INTERVALS = """\
5512 records sent, 5484.6 records/sec (0.52 MB/sec), 152.2 ms avg latency, 439.0 ms max latency.
In steady state.
"""
WHOLE = (
    "20000 records sent, 4964.010921 records/sec (0.47 MB/sec), 170.05 ms avg latency,"
    " 1156.00 ms max latency, 15 ms 50th, 514 ms 95th, 531 ms 99th, 556 ms 99.9th.\n"
)
STEADY = (
    "15000 steady state records sent, 5129.958960 records/sec (0.49 MB/sec), 61.74 ms avg latency,"
    " 439.00 ms max latency, 10 ms 50th, 399 ms 95th, 438 ms 99th, 439 ms 99.9th.\n"
)
CONSUMED = """\
start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, \
rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec
2026-11-22 10:40:18:656, 2026-11-22 10:40:23:766, 1.9073, 0.3733, 20000, 3913.8943, 4931, 179, \
10.6556, 111731.8436
"""


def test_a_producer_without_warm_up_has_one_summary() -> None:
    found = produced(INTERVALS + WHOLE)
    assert found == Produced(20_000, 4964.010921, 15, 531, 556)
    assert found.seconds == pytest.approx(4.029, abs=0.001)


def test_latencies_exclude_the_warm_up_and_the_rate_includes_it() -> None:
    assert produced(INTERVALS + WHOLE + STEADY) == Produced(20_000, 4964.010921, 10, 438, 439)


def test_a_consumer_prints_one_line_of_values_below_its_header() -> None:
    assert consumed(CONSUMED) == Consumed(20_000, 0.3733, 10.6556)


@pytest.mark.parametrize("output", ["", INTERVALS, STEADY, "WARN something\n"])
def test_output_without_figures_is_an_error_that_shows_it(output: str) -> None:
    with pytest.raises(UnreadableOutput) as raised:
        produced(output)
    assert str(raised.value) == output
    with pytest.raises(UnreadableOutput):
        consumed(output)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(1, 201)]
    assert [percentile(values, p) for p in (0, 50, 99, 99.9, 100)] == [1, 100, 198, 200, 200]
    assert percentile([7.0], 50) == 7


def test_a_table_shows_medians_spreads_and_ratios() -> None:
    table = Table(("one", "other"))
    for value in (10.0, 30.0, 20.0):
        table.add("one", [Figure("load", "records/s", value)])
    table.add("one", [Figure("another", "p50 ms", 1.0)])
    table.add("other", [Figure("load", "records/s", 5.0), Figure("load", "found, %", 100.0)])
    assert table.markdown().splitlines() == [
        "| load | figure | one | other | other / one |",
        "|---|---|---:|---:|---:|",
        "| load | records/s | 20.0 (10.0-30.0) | 5.00 | 0.25 |",
        "| load | found, % |  | 100 |  |",
        "| another | p50 ms | 1.00 |  |  |",
    ]


def test_a_ratio_to_nothing_is_left_out() -> None:
    table = Table(("one", "other"))
    for server in table.servers:
        table.add(server, [Figure("idle", "cores", 0.0)])
    assert table.markdown().splitlines()[-1] == "| idle | cores | 0.000 | 0.000 |  |"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (1234567.8, "1,234,568")],
)
def test_values_are_shown_with_about_three_digits(value: float, text: str) -> None:
    assert short(value) == text


def test_a_series_that_grows_only_at_first_is_flat() -> None:
    found = growth([1, 2, 10, 10, 10, 11, 12, 11])
    assert (found.before, found.after, found.flat) == (10, 11.5, True)


def test_a_series_that_keeps_growing_is_not_flat() -> None:
    assert not growth([float(n) for n in range(1, 9)]).flat
    assert growth([0.0] * 8).flat


def test_the_size_of_a_directory_is_the_disk_blocks_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_bytes(b"x" * 10_000)
    assert directory_bytes(tmp_path) == (tmp_path / "inside" / "file").stat().st_blocks * 512
