"""The session of docs/iceberg.md, as typed, prints what the page shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.doc_session import sessions, typed
from tests.support.typed_tables import SETTINGS


@pytest.mark.test_all
def test_the_session_prints_what_the_page_shows(
    own_broker: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = own_broker(**SETTINGS, group_initial_rebalance_delay_ms="0")
    for script, shown in sessions("iceberg.md"):
        assert typed(script, broker, tmp_path).splitlines()[-len(shown.splitlines()) :] == (
            shown.splitlines()
        )
