"""Lengths of records, looked at while their batch is decompressed: both modules alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.protocol import _decode_batches
from brokerhouse.protocol.errors import InvalidRecord, KafkaError, MessageTooLarge
from tests.reference import decode_batches
from tests.support import record_batches as make
from tests.support.record_batches import Record, encode_records

MODULES = [decode_batches, _decode_batches]
FEW = encode_records(Record(value=b"x" * size) for size in (0, 1, 100, 200, 3000))


@pytest.mark.parametrize("module", MODULES)
def test_whole_records_are_accepted_in_pieces_of_any_size(module: Any) -> None:
    for step in (1, 2, 3, 7, 1000, len(FEW)):
        lengths = module.RecordLengths(5, 4000)
        for end in range(step, len(FEW) + step, step):
            lengths.check(memoryview(FEW)[:end])


@pytest.mark.parametrize("module", MODULES)
def test_an_impossible_record_length_is_refused_as_soon_as_it_is_read(module: Any) -> None:
    with pytest.raises(MessageTooLarge):
        module.RecordLengths(5, 2999).check(FEW[:-2900])
    with pytest.raises(InvalidRecord, match="more than its 4 records"):
        module.RecordLengths(4, 4000).check(FEW[:-2900])
    for wrong in (make.varint(0), make.varint(-1), b"\xff" * 5, b"\xff\xff\xff\xff\x10"):
        with pytest.raises(InvalidRecord):
            module.RecordLengths(6, 4000).check(FEW + wrong)


@given(mutations=make.mutations(), step=st.integers(1, 50), count=st.integers(0, 6))
def test_spoilt_records_are_taken_or_refused_alike(
    mutations: list[make.Mutation], step: int, count: int
) -> None:
    data = make.spoil(FEW, mutations)

    def outcome(module: Any) -> type[KafkaError] | int:
        lengths = module.RecordLengths(count, 250)
        for end in range(step, len(data) + step, step):
            try:
                lengths.check(data[:end])
            except KafkaError as error:
                return type(error)
        return 0

    assert outcome(decode_batches) is outcome(_decode_batches)
