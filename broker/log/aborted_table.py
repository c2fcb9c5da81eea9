"""The table `aborted_transactions`: rows that brokers store when they have written an abort."""

from __future__ import annotations

from broker.log.partition import PartitionLog
from broker.log.transactions import AbortedTransaction
from storage.blocks import INT32, INT64, STRING, UUIDS, Table
from storage.row_lane import TableRows

ABORTED_TRANSACTIONS = Table(
    "aborted_transactions",
    (
        ("topic", STRING),
        ("topic_id", UUIDS),
        ("partition", INT32),
        ("producer_id", INT64),
        ("transaction_start", INT64),
        ("last_offset", INT64),
    ),
)


def aborted_row(log: PartitionLog, aborted: AbortedTransaction) -> TableRows:
    row = (log.topic.name, log.topic_id, log.partition, *aborted)
    return TableRows(ABORTED_TRANSACTIONS, [row])
