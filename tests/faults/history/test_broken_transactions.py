"""The history of transactions finds brokers that were broken on purpose.

Each test breaks one rule, and plays the history of test_wire_transactions.py with that broker. Some
changes also let the markers wait, so that a kill meets a broker between decision and marker. That
alone breaks nothing, which is tested too, as is another change that must not be noticed.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.history.broken import Change, broken_copy
from tests.faults.history.wire_transactions import play
from tests.support.broker_process import BrokerProcess

KILLS = 3
BETWEEN_S = 2.0

MARKERS_WAIT = Change(
    "coordinator/hosted_transactions.py",
    "                await self._markers.write(prepared)\n",
    "                await asyncio.sleep(0.3)\n"
    "                await self._markers.write(prepared)\n",
)


@dataclass(frozen=True, slots=True)
class Break:
    """`finding`: what one of the findings must contain."""

    name: str
    changes: tuple[Change, ...]
    finding: str = ""


BREAKS = [
    Break(
        "batches are not deduplicated",
        (
            Change(
                "broker/log/producers.py",
                "        if offset is not None:\n            return offset\n",
                "        if offset is not None:\n            return None\n",
            ),
        ),
        "a value twice",
    ),
    Break(
        "a partition gets no marker",
        (
            Change(
                "broker/slots/slot_transactions.py",
                "for member in transaction.members:\n",
                "for member in sorted(transaction.members)[:1]:\n",
            ),
        ),
        "is stuck",
    ),
    Break(
        "markers are written twice",
        (
            Change(
                "coordinator/hosted_transactions.py",
                "prepared.completed(self._clock.wall_ms()))\n",
                "prepared.completed(self._clock.wall_ms()))\n"
                "                for _ in range(5):\n"
                "                    await asyncio.sleep(0.01)\n"
                "                    await self._markers.write(prepared)\n",
            ),
        ),
        "transaction is",
    ),
    Break(
        "the last stable offset is one too high",
        (
            Change(
                "broker/log/partition.py",
                "else max(first_open, self.log_start_offset)",
                "else max(first_open + 1, self.log_start_offset)",
            ),
        ),
        "a consumer and SQL differ",
    ),
    Break(
        "an old epoch is accepted",
        (
            Change(
                "coordinator/transaction_states.py",
                "        return producer.epoch == self.epoch < MAX_EPOCH\n",
                "        return producer.epoch <= self.epoch < MAX_EPOCH\n",
            ),
            Change(
                "broker/log/producers.py",
                "    if header.producer_epoch < entry.epoch:\n",
                "    if header.producer_epoch < entry.epoch:\n        return None\n"
                "    if header.producer_epoch < entry.epoch:\n",
            ),
        ),
        "",
    ),
    Break(
        "a decision is not durable",
        (
            MARKERS_WAIT,
            Change(
                "coordinator/transaction_coordinator.py",
                "                await self.hosted.store(hosted, ended)\n",
                "                hosted.transaction = ended\n",
            ),
        ),
        "an acknowledged transaction is lost",
    ),
    Break(
        "consumers are not told what was aborted",
        (
            Change(
                "broker/log/partition_transactions.py",
                "        found = []\n        for one in islice",
                "        found: list[AbortedTransaction] = []\n        return found\n"
                "        for one in islice",
            ),
        ),
        "a consumer and SQL differ",
    ),
    Break(
        "it is not stored that a transaction begins",
        (
            Change(
                "broker/log/block_store.py",
                "        if not block.staging.begun:\n",
                "        if True:\n",
            ),
        ),
        "a consumer and SQL differ",
    ),
    Break(
        "offsets of aborted transactions count",
        (Change("coordinator/pending_offsets.py", "        if commit:\n", "        if True:\n"),),
        "and committed",
    ),
    Break(
        "offsets of transactions are not durable",
        (
            MARKERS_WAIT,
            Change(
                "coordinator/pending_offsets.py",
                "        stored = self._rows.put(",
                "        stored = asyncio.get_running_loop().create_future()\n"
                "        stored.set_result(None)\n"
                "        str(",
            ),
        ),
        "and committed",
    ),
    Break(
        "a time-out does not fence the producer",
        (
            Change(
                "coordinator/transaction_states.py",
                "        raised = self.epoch + (2 if self.version >= 2 else 1)",
                "        raised = self.epoch",
            ),
        ),
        "",
    ),
    Break(
        "a batch needs no transaction that includes its partition",
        (
            Change(
                "broker/slots/slot_transactions.py",
                "            self._transactions.verify(transactional_id, producer, member)\n",
                "            pass\n",
            ),
        ),
        "",
    ),
    Break(
        "SQL takes every marker for a commit",
        (
            Change(
                "sql/schema/054_messages_committed_one_step.sql",
                r"WHERE control AND key = '\0\0\0\x01' AND",
                "WHERE control AND",
            ),
        ),
        "SQL has shown",
    ),
]
HARMLESS = [
    Break("markers wait", (MARKERS_WAIT,)),
    Break(
        "nearly all aborted transactions are read from their table",
        (
            Change(
                "broker/log/partition_transactions.py", "ABORTED_KEPT = 1000", "ABORTED_KEPT = 2"
            ),
        ),
    ),
]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[BrokerProcess]]:
    """What a test appends is killed when it ends."""
    made: list[BrokerProcess] = []
    yield made
    for broker in made:
        if broker.running:
            broker.kill()


@pytest.mark.parametrize("broken", BREAKS + HARMLESS, ids=lambda broken: broken.name)
def test_each_change_of_a_broken_broker_still_applies(broken: Break, tmp_path: Path) -> None:
    broken_copy(broken.changes, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("broken", BREAKS + HARMLESS, ids=lambda broken: broken.name)
def test_the_checker_finds_a_broker_without_one_of_its_rules(
    brokers: list[BrokerProcess], tmp_path: Path, broken: Break
) -> None:
    seed = random.SystemRandom().randrange(1000)
    broker = BrokerProcess(tmp_path / "data", tree=broken_copy(broken.changes, tmp_path / "tree"))
    brokers.append(broker)
    broker.start()
    wrong, _ = play(broker, seed, kills=KILLS, between_s=BETWEEN_S)
    print("\n".join([f"seed {seed}", *wrong]))
    if broken in HARMLESS:
        assert wrong == []
    else:
        assert any(broken.finding in one for one in wrong)
