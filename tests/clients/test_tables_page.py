"""The session of docs/tables.md, as typed, prints what the page shows."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.broker_process import BrokerProcess
from tests.support.doc_session import sessions, typed, words
from tests.support.typed_tables import SETTINGS, TypedTables


def test_the_session_of_tables_md_prints_what_the_page_shows(
    own_broker: Callable[..., BrokerProcess],
) -> None:
    broker = own_broker(**SETTINGS)
    tables = TypedTables(broker)
    (make, _), (ask, shown), (mend, mended) = sessions("tables.md")

    typed(make, broker)
    tables.await_fed("shop.orders", 2)
    assert words(typed(ask, broker)) == words(shown)

    assert words(typed(mend, broker)) == words(mended)
    rows = tables.sql("SELECT items FROM shop.orders ORDER BY id")
    assert rows == [{"items": 2}, {"items": 900}]
