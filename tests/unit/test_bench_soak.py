"""`make soak`: what counts as growth, what the report shows, the records and the bombs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.samples import MINUTE, Sample
from bench.soak.clients import number_of, value_of
from bench.soak.hostile import bomb
from bench.soak.report import DISK, FDS, OUTDATED, PARTS, RECORDS, RSS, THREADS, Report, verdict

FIGURES = (RSS, FDS, THREADS, PARTS, OUTDATED, DISK, RECORDS)


def report(**growing: float) -> Report:
    """Forty minutes; the figures in `growing` grow by so much a minute in the second half."""
    names = {"rss": RSS, "outdated": OUTDATED, "descriptors": FDS}
    rates = {names[name]: rate for name, rate in growing.items()}
    samples: list[Sample] = [
        {MINUTE: float(n), **{name: 100 + max(0, n - 20) * rates.get(name, 0) for name in FIGURES}}
        for n in range(40)
    ]
    return Report(samples, kills=[5.0, 12.0], calm_since=13.0)


@pytest.mark.parametrize(
    ("growing", "failures"),
    [
        ({}, []),
        ({"rss": 5.0}, ["RSS MB grew"]),
        ({"rss": 0.5}, []),
        ({"outdated": 50.0}, []),
        ({"descriptors": 3.0, "rss": 4.0}, ["RSS MB grew", "descriptors grew"]),
    ],
)
def test_growth_after_the_last_kill_fails_a_soak(
    growing: dict[str, float], failures: list[str]
) -> None:
    assert verdict(report(**growing), must_be_flat=True) == failures
    assert verdict(report(**growing), must_be_flat=False) == []


def test_a_lost_record_fails_a_soak() -> None:
    found = report()
    found.problems.append("a record is lost")
    assert verdict(found, must_be_flat=False) == ["a record is lost"]
    assert "PROBLEM: a record is lost" in found.markdown()


def test_small_growth_of_a_small_count_is_not_reported() -> None:
    found = report()
    found.samples = [{MINUTE: float(n), FDS: 10 + (n > 30) * 5} for n in range(40)]
    assert found.grown() == []


def test_the_picture_shows_every_figure_and_every_kill(tmp_path: Path) -> None:
    for suffix in (".svg", ".png"):
        path = tmp_path / f"soak{suffix}"
        report().draw(path)
        assert path.stat().st_size > 5000


def test_the_number_of_a_record_is_read_back_from_its_value() -> None:
    assert [number_of(value_of(n)) for n in (0, 7, 10**12)] == [0, 7, 10**12]
    assert number_of(None) == number_of(b"other") == -1


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_compression_bomb_is_a_small_batch(codec: str) -> None:
    assert len(bomb(codec)) < 300_000
