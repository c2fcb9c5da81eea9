"""Which inserts over HTTP have a token, and which have the form of the brokers'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.handles import ExternalTable, StatementContext
from brokerhouse.sql.http.request import SqlRequest
from brokerhouse.sql.http.text import InsertData, insert_head
from brokerhouse.sql.http.token_inserts import TokenInsert, token_insert
from brokerhouse.storage.clickhouse import INSERT_SETTINGS

TOKEN = "17-3-1"
SETTINGS = {
    **{name: value for name, value in INSERT_SETTINGS.items() if name != "wait_end_of_query"},
    "insert_deduplication_token": TOKEN,
    "insert_quorum": "0",
    "insert_quorum_parallel": "1",
    "insert_quorum_timeout": "8000",
    "date_time_input_format": "best_effort",
    "cast_string_to_dynamic_use_inference": "1",
}
STATEMENT = "INSERT INTO messages (topic, offset) FORMAT Native"
WANTED = SqlRequest("POST", "1", Role.WRITER)
CONTEXT = StatementContext(Role.WRITER, "brokerhouse_shard", SETTINGS, {}, read_only=False)
PLAIN = TokenInsert("messages", TOKEN, "topic, offset")
OTHER_FORM = replace(PLAIN, columns=None)


def found(
    statement: str = STATEMENT, context: StatementContext = CONTEXT, wanted: SqlRequest = WANTED
) -> TokenInsert | None:
    head = insert_head(statement.encode() + b"\n", complete=True)
    assert isinstance(head, InsertData)
    return token_insert(wanted, context, head)


def test_the_inserts_of_brokers_are_recognised() -> None:
    assert found() == PLAIN


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("insert into brokerhouse_shard.messages(topic,offset) FORMAT Native", PLAIN),
        (
            f"INSERT INTO messages (topic, offset) SETTINGS insert_deduplication_token = '{TOKEN}'"
            " FORMAT Native",
            PLAIN,
        ),
        (
            "INSERT INTO messages (topic, offset) SETTINGS insert_deduplication_token = '2-1-1'"
            " FORMAT Native",
            replace(PLAIN, token="2-1-1"),
        ),
        (
            "INSERT INTO messages (topic, offset) SETTINGS insert_deduplication_token = '2-1-1',"
            " input_format_null_as_default = 0 FORMAT Native",
            replace(OTHER_FORM, token="2-1-1"),
        ),
        ("INSERT INTO messages (topic, offset) FORMAT TSV", OTHER_FORM),
        ("INSERT INTO messages (`topic`, offset) FORMAT Native", OTHER_FORM),
        ("INSERT INTO messages (* EXCEPT(offset)) FORMAT Native", OTHER_FORM),
        ("INSERT INTO messages FORMAT Native", OTHER_FORM),
        ("INSERT INTO other.messages (topic, offset) FORMAT Native", None),
        ("INSERT INTO `messages` (topic, offset) FORMAT Native", None),
        (
            "INSERT INTO messages (topic, offset) SETTINGS insert_deduplicate = 0 FORMAT Native",
            None,
        ),
    ],
)
def test_a_statement_has_the_form_of_the_brokers_or_another(
    statement: str, expected: TokenInsert | None
) -> None:
    assert found(statement) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("async_insert", "1"),
        ("materialized_views_ignore_errors", "0"),
        ("input_format_null_as_default", "1"),
        ("keeper_map_strict_mode", "1"),
    ],
)
def test_an_insert_with_settings_that_may_have_an_effect_is_another_form(
    name: str, value: str
) -> None:
    assert found(context=replace(CONTEXT, settings={**SETTINGS, name: value})) == OTHER_FORM


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("insert_deduplicate", "0"),
        ("insert_deduplication_token", ""),
        ("insert_deduplication_token", "x" * 501),
        ("insert_deduplication_token", "a\nb"),
        ("insert_deduplication_token", "\udc80"),
    ],
)
def test_an_insert_without_a_valid_token_is_not_recognised(name: str, value: str) -> None:
    assert found(context=replace(CONTEXT, settings={**SETTINGS, name: value})) is None


def test_an_insert_with_parameters_or_tables_is_another_form() -> None:
    assert found(context=replace(CONTEXT, params={"a": b"1"})) == OTHER_FORM
    table = ExternalTable("t", b"a Int8", "TSV", b"1")
    assert found(context=replace(CONTEXT, tables=(table,))) == OTHER_FORM
    assert found(context=replace(CONTEXT, read_only=True)) == OTHER_FORM
    assert found(wanted=replace(WANTED, client_revision=54405)) == OTHER_FORM
    assert found(context=replace(CONTEXT, database="default")) is None
