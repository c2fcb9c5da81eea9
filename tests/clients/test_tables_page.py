"""The session of docs/tables.md, as typed, prints what the page shows."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.broker_process import BrokerProcess
from tests.support.doc_session import sessions, typed, words
from tests.support.typed_tables import SETTINGS, TypedTables
from tests.support.waiting import until


def test_the_session_prints_what_the_page_shows(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker(**SETTINGS)
    tables = TypedTables(broker)
    (make, _), (ask, shown), (mend, _) = sessions("tables.md")

    typed(make, broker)
    tables.await_fed("shop.orders", 2)
    assert words(typed(ask, broker)) == words(shown)

    typed(mend, broker)
    until(
        lambda: (
            tables.sql("SELECT items FROM shop.orders ORDER BY id")
            == [{"items": 2}, {"items": 900}]
        ),
        "the mended order is there",
    )
