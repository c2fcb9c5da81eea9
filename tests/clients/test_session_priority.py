"""The broker's share of the processor, where Linux shares it by session."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from common.session_priority import SESSION_NICE
from tests.support.broker_process import BrokerProcess


class ServiceBroker(BrokerProcess):
    """A broker that leads a session, as a service does."""

    def command(self) -> Sequence[str]:
        return ["setsid", *super().command()]


def session_nice(broker: BrokerProcess) -> int:
    """0 where the kernel has no autogroups."""
    try:
        return int(Path(f"/proc/{broker.pid}/autogroup").read_text().split()[-1])
    except FileNotFoundError:
        return 0


def may_raise() -> bool:
    return os.geteuid() == 0 and Path("/proc/self/autogroup").exists()


@pytest.mark.parametrize("kind", [ServiceBroker, BrokerProcess])
def test_a_broker_raises_the_share_of_a_session_that_it_leads(
    tmp_path: Path, kind: type[BrokerProcess]
) -> None:
    broker = kind(tmp_path / "data")
    broker.start()
    try:
        leads = os.getsid(broker.pid) == broker.pid
        assert leads is (kind is ServiceBroker)
        assert session_nice(broker) == (SESSION_NICE if leads and may_raise() else 0)
    finally:
        broker.stop()
