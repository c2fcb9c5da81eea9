"""Transactions of producers that break the rules while the broker is killed again and again."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.faults.history.wire_transactions import play
from tests.support.broker_process import BrokerProcess

KILLS = 4
BETWEEN_S = 2.0
COMMITS = 11


@pytest.mark.test_all
def test_transactions_are_whole_whatever_happens_to_the_broker(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    seed = random.SystemRandom().randrange(1000)
    print(f"seed {seed}")
    wrong, histories = play(own_broker(), seed, kills=KILLS, between_s=BETWEEN_S, commits=COMMITS)
    ends = {
        kind: sum(len(getattr(one, kind)) for one in histories)
        for kind in ("committed", "aborted", "unknown")
    }
    print(ends)
    assert wrong == []
    assert ends["committed"] > 50
