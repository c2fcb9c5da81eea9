"""The headers of record batches, and the copy of a batch that the log keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.protocol.errors import (
    CorruptMessage,
    UnsupportedForMessageFormat,
)
from tests.support import record_batches as make
from tests.support.record_batches import Batch, Record, batch_of
from tests.support.record_codecs import (
    BOTH,
    fields,
    header_of,
)

# --- headers ---


def test_empty_bytes_contain_no_batches(module: Any) -> None:
    assert module.parse_headers(b"") == []


@pytest.mark.parametrize("magic", [0, 1])
def test_an_older_message_format_is_refused_by_its_name(module: Any, magic: int) -> None:
    with pytest.raises(UnsupportedForMessageFormat):
        module.parse_headers(replace(batch_of(Record()), magic=magic).data)
    with pytest.raises(UnsupportedForMessageFormat):
        module.parse_headers(bytes(16) + bytes([magic]))


@pytest.mark.parametrize("magic", [-128, -1, 3, 127])
def test_an_unknown_message_format_is_corrupt(module: Any, magic: int) -> None:
    with pytest.raises(CorruptMessage):
        module.parse_headers(replace(batch_of(Record()), magic=magic).data)


def test_a_batch_cut_anywhere_is_corrupt(module: Any) -> None:
    data = batch_of(Record(), Record()).data
    for end in range(1, len(data)):
        with pytest.raises(CorruptMessage):
            module.parse_headers(data[:end])
        with pytest.raises(CorruptMessage):
            module.parse_headers(data + data[:end])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, 2**31 - 1])
def test_an_impossible_batch_length_is_corrupt(module: Any, length: int) -> None:
    data = bytearray(batch_of(Record()).data)
    data[8:12] = length.to_bytes(4, signed=True)
    with pytest.raises(CorruptMessage):
        module.parse_headers(bytes(data))


def test_a_changed_bit_after_the_crc_is_corrupt(module: Any) -> None:
    data = batch_of(Record(key=b"k")).data
    for bit in range(17 * 8, len(data) * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        (header,) = module.parse_headers(bytes(spoilt))
        with pytest.raises(CorruptMessage):
            module.check_crc(bytes(spoilt), header)


def test_a_header_of_other_records_raises_a_value_error(module: Any) -> None:
    data = batch_of(Record(), Record()).data
    (header,) = module.parse_headers(data)
    calls: list[Callable[[], object]] = [
        lambda: module.check_crc(data[:-1], header),
        lambda: module.stamp_batch(data[:-1], header, 0, 0, None),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="does not belong to these records"):
            call()


@pytest.mark.parametrize(
    ("base", "count", "last"),
    [(-1, 3, -1), (0, 1, 0), (2**31 - 1, 1, 2**31 - 1), (2**31 - 1, 2, 0), (2**31 - 2, 4, 1)],
)
def test_sequence_numbers_wrap_to_zero(module: Any, base: int, count: int, last: int) -> None:
    batch = batch_of(*[Record()] * count, producer_id=1, base_sequence=base)
    assert header_of(module, batch).last_sequence == last


# --- stamping ---


@given(make.batches(), st.integers(0, 2**63 - 1), st.integers(*make.INT32))
def test_stamping_a_batch_sets_offset_and_epoch_and_keeps_the_crc_valid(
    batch: Batch, base_offset: int, leader_epoch: int
) -> None:
    data = b"xx" + batch.data + b"yy"
    expected = replace(batch, base_offset=base_offset, leader_epoch=leader_epoch).data
    for module in BOTH:
        header = moved(module, header_of(module, batch), 2)
        assert module.stamp_batch(data, header, base_offset, leader_epoch, None) == expected


@given(make.batches(), st.integers(*make.INT64))
def test_stamping_log_append_time_changes_the_batch_and_its_crc(batch: Batch, now_ms: int) -> None:
    expected = replace(
        batch,
        base_offset=9,
        leader_epoch=1,
        attributes=batch.attributes | 8,
        max_timestamp=now_ms,
    ).data
    for module in BOTH:
        header = header_of(module, batch)
        assert module.stamp_batch(batch.data, header, 9, 1, now_ms) == expected


def moved(module: Any, header: Any, by: int) -> Any:
    values = fields(header)
    values["start"] += by
    values["end"] += by
    return module.BatchHeader(**values)
