"""Error codes are found wherever they stand in a response, and have Kafka's names."""

import re

from kafka.protocol.admin import ListGroupsResponse
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import AddPartitionsToTxnResponse

from brokerhouse.broker.monitoring.request_counts import error_codes
from brokerhouse.protocol.errors import error_name
from tests.support.server_process import PROJECT


def test_errors_of_the_request_and_of_its_partitions_are_found() -> None:
    topic = FetchResponse.FetchableTopicResponse
    response = FetchResponse(
        error_code=70,
        responses=[
            topic(partitions=[topic.PartitionData(error_code=code) for code in (0, 3, 6)]),
            topic(partitions=[topic.PartitionData(error_code=6)]),
        ],
    )
    assert error_codes(response) == [70, 3, 6, 6]


def test_fields_with_other_names_are_found() -> None:
    one = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
    topic = one.AddPartitionsToTxnTopicResult
    partition = topic.AddPartitionsToTxnPartitionResult
    response = AddPartitionsToTxnResponse(
        results_by_transaction=[
            one(topic_results=[topic(results_by_partition=[partition(partition_error_code=51)])])
        ]
    )
    assert error_codes(response) == [51]


def test_a_response_without_errors_has_none() -> None:
    assert error_codes(ListGroupsResponse(error_code=0, groups=[])) == []
    assert error_codes(FetchResponse(error_code=0, responses=None)) == []


def test_every_error_has_the_name_that_stands_beside_its_code() -> None:
    text = (PROJECT / "protocol/errors.py").read_text(encoding="utf-8")
    names = {int(code): name for code, name in re.findall(r"code = (-?\d+)  # ([A-Z_]+)", text)}
    assert len(names) > 50
    assert {code: error_name(code) for code in names} == names
    assert error_name(12345) == "12345"
