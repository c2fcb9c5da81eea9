"""Transactional ids as rows: how they are written and read back."""

from __future__ import annotations

from uuid import UUID

from coordinator.tables import TRANSACTIONS
from coordinator.transaction_states import NOT_STARTED, Member, Transaction, TransactionState
from protocol.errors import InvalidRegularExpression
from storage.engine import Engine, EngineError, Row
from storage.row_lane import TableRows

_READ = """
SELECT
    transactional_id, version, producer_id, producer_epoch, last_epoch, previous_producer_id,
    next_producer_id, timeout_ms, state, client_version,
    arrayMap(one -> one.1, partitions), arrayMap(one -> toString(one.2), partitions),
    arrayMap(one -> one.3, partitions), groups,
    toUnixTimestamp64Milli(start_time), toUnixTimestamp64Milli(update_time), removed
FROM transaction_versions FINAL
"""


_MATCHING = """
SELECT transactional_id
FROM transaction_versions FINAL
WHERE NOT removed AND match(transactional_id, concat('^(?-s:', {pattern:String}, ')$'))
    AND replaceRegexpOne('', {pattern:String}, '') = ''
"""
"""The second condition refuses a pattern that is one only between the parentheses of the first."""
_BAD_ARGUMENTS, _CANNOT_COMPILE_REGEXP = 36, 427


def transaction_row(
    transaction: Transaction, version: int, node_id: int, *, removed: bool = False
) -> TableRows:
    t = transaction
    row = (
        t.transactional_id, version, t.producer_id, t.epoch, t.last_epoch, t.previous_producer_id,
        t.next_producer_id, t.timeout_ms, t.state.value, t.version, sorted(t.members),
        sorted(t.groups), max(t.started_ms, 0), t.updated_ms, removed, node_id,
    )  # fmt: skip
    return TableRows(TRANSACTIONS, [row])


async def read_transactions(engine: Engine) -> list[tuple[Transaction, int]]:
    """Every transactional id that has not expired, and its version. Raises `EngineError`."""
    return [(_transaction(row), row[1]) for row in await engine.rows(_READ) if not row[-1]]


async def matching_ids(engine: Engine, pattern: str) -> set[str]:
    """The transactional ids of which all is matched by a regular expression, in RE2's syntax.

    Raises `InvalidRegularExpression`, and `EngineError`.
    """
    try:
        return {row[0] for row in await engine.rows(_MATCHING, {"pattern": pattern})}
    except EngineError as error:
        if error.code in (_BAD_ARGUMENTS, _CANNOT_COMPILE_REGEXP):
            raise InvalidRegularExpression(f"{pattern!r} is not a regular expression") from error
        raise


def _transaction(row: Row) -> Transaction:
    (
        transactional_id, _, producer_id, epoch, last_epoch, previous_id, next_id, timeout_ms,
        state, version, topics, topic_ids, partitions, groups, started_ms, updated_ms, _,
    ) = row  # fmt: skip
    return Transaction(
        transactional_id=transactional_id,
        producer_id=producer_id,
        timeout_ms=timeout_ms,
        epoch=epoch,
        last_epoch=last_epoch,
        previous_producer_id=previous_id,
        next_producer_id=next_id,
        state=TransactionState(state),
        version=version,
        members=frozenset(
            Member(topic, UUID(topic_id), partition)
            for topic, topic_id, partition in zip(topics, topic_ids, partitions, strict=True)
        ),
        groups=frozenset(groups),
        started_ms=started_ms or NOT_STARTED,
        updated_ms=updated_ms,
    )
