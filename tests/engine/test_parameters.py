"""Query parameters: whatever text a client sends reaches ClickHouse as exactly that text."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerhouse.storage.embedded import EmbeddedEngine
from brokerhouse.storage.parameters import parameter_texts

NASTY = "'\"`\\\t\n\r\0\b\f\v{}[](),:;--/**/%s$1 \\N \\' '' é 😀 \u2028 \ufeff"


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """hypothesis calls a test many times; the engine is opened once."""
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def opened(
    loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedEngine]:
    async def open_engine(directory: Path) -> EmbeddedEngine:
        return EmbeddedEngine(directory, 1, fsync=False)

    engine = loop.run_until_complete(open_engine(tmp_path_factory.mktemp("engine")))
    yield engine
    loop.run_until_complete(engine.close())


texts = st.text(max_size=30) | st.text(st.sampled_from(NASTY), max_size=10)
"""Any text that UTF-8 can carry, and often what means something to a parser."""


@given(texts)
@example(NASTY)
@example("")
@settings(max_examples=150, deadline=None)
def test_a_string_parameter_arrives_unchanged(
    loop: asyncio.AbstractEventLoop, opened: EmbeddedEngine, text: str
) -> None:
    rows = loop.run_until_complete(
        opened.rows("SELECT {t:String}, length({t:String})", {"t": text})
    )
    assert rows == [[text, len(text.encode())]]


@given(st.lists(texts, max_size=5))
@example([NASTY, "", NASTY])
@settings(max_examples=80, deadline=None)
def test_a_list_parameter_arrives_unchanged(
    loop: asyncio.AbstractEventLoop, opened: EmbeddedEngine, items: list[str]
) -> None:
    rows = loop.run_until_complete(opened.rows("SELECT {a:Array(String)}", {"a": items}))
    assert rows == [[items]]


@given(st.dictionaries(texts, texts, max_size=5))
@example({NASTY: NASTY, "": ""})
@settings(max_examples=80, deadline=None)
def test_a_map_parameter_arrives_unchanged(
    loop: asyncio.AbstractEventLoop, opened: EmbeddedEngine, pairs: dict[str, str]
) -> None:
    rows = loop.run_until_complete(opened.rows("SELECT {m:Map(String, String)}", {"m": pairs}))
    assert rows == [[pairs]]


@given(st.integers(-(2**63), 2**63 - 1))
@example(-(2**63))
@example(2**63 - 1)
@settings(max_examples=50, deadline=None)
def test_a_number_parameter_arrives_unchanged(
    loop: asyncio.AbstractEventLoop, opened: EmbeddedEngine, number: int
) -> None:
    rows = loop.run_until_complete(opened.rows("SELECT {n:Int64}", {"n": number}))
    assert rows == [[number]]


def test_a_parameter_is_never_read_as_sql(
    loop: asyncio.AbstractEventLoop, opened: EmbeddedEngine
) -> None:
    attack = "x' OR 1 = 1; DROP DATABASE brokerhouse; --"
    sql = "SELECT count() FROM numbers(3) WHERE toString(number) = {t:String}"
    assert loop.run_until_complete(opened.rows(sql, {"t": attack})) == [[0]]
    assert loop.run_until_complete(opened.rows(sql, {"t": "1"})) == [[1]]


def test_a_statement_without_parameters_sends_no_parameter_texts() -> None:
    assert parameter_texts(None) == parameter_texts({}) == {}
