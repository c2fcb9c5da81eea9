"""A broker that does not run as root: missing rights must not end the engine."""

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.conftest import OwnBrokers
from tests.support import messages
from tests.support.sql_rows import SqlError
from tests.support.wire import Wire


@pytest.fixture
def python_without_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers are started without CAP_SYS_NICE, as ordinary users and containers are."""
    if os.geteuid() != 0:
        return
    wrapper = tmp_path / "python"
    drop = "setpriv --bounding-set=-sys_nice --inh-caps=-sys_nice"
    wrapper.write_text(f'#!/bin/sh\nexec {drop} {sys.executable} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(wrapper))


@pytest.mark.usefixtures("python_without_rights")
def test_a_broker_that_may_not_renice_serves_reads_and_sql(
    own_broker: OwnBrokers, topic: str
) -> None:
    """chDB ends the process when a thread that gave way may not take its priority back."""
    broker = own_broker(sql_user="admin", sql_password="secret")
    with Wire(broker) as wire:
        target = messages.create_topic(wire, topic)
        wire.ask(messages.produce(target, messages.small_batch()), 12)
    broker.restart()
    with Wire(broker) as wire:
        for _ in range(20):
            cold = wire.ask(messages.fetch(target, 0), 12).responses[0].partitions[0]
            assert (cold.error_code, cold.high_watermark) == (0, 2)
            assert len(cold.records) > 0
            found = wire.ask(messages.list_offsets(target, 0), 7).topics[0].partitions[0]
            assert found.offset == 0
    for query in ("SELECT count() AS n FROM messages", "SELECT sum(1) AS n FROM numbers(2)"):
        assert broker.sql(query) == [{"n": 2}]
        assert broker.sql(query, user="admin", password="secret") == [{"n": 2}]
    with pytest.raises(SqlError, match="SETTING_CONSTRAINT_VIOLATION"):
        broker.sql("SELECT 1 SETTINGS os_thread_priority = 15")
    broker.stop()
    assert "terminating" not in broker.log()
