"""The files of sql/queries: each says what it answers, and each is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from brokerhouse.sql.queries import query

PROJECT = Path(__file__).resolve().parents[2]
FILES = sorted((PROJECT / "sql/queries").glob("*.sql"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_query_file_begins_with_a_comment_and_is_one_statement(path: Path) -> None:
    text = path.read_text()

    assert text.startswith("-- ")
    assert text.endswith(";\n")
    assert text.count(";\n") == 1


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_query_file_is_used(path: Path) -> None:
    rooms = ("broker", "coordinator", "feeds", "spark_jobs", "sql", "storage")
    code = "".join(
        module.read_text() for room in rooms for module in (PROJECT / room).rglob("*.py")
    )

    assert f'"{path.stem}"' in code


def test_an_unknown_query_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        query("no_such_query")


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_query_is_returned_without_comments_and_semicolon(path: Path) -> None:
    names = set(re.findall(r"\$\{(\w+)\}", path.read_text()))
    text = query(path.stem, **dict.fromkeys(names, "filled_in"))

    assert "--" not in text
    assert ";" not in text
    assert "${" not in text


@pytest.mark.parametrize(
    ("name", "schema", "lacks"),
    [
        ("spark_feed_blocks", "048_table_feed_blocks", []),
        ("spark_dead_letter_versions", "049_dead_letter_versions", [("rows", "UInt32")]),
    ],
)
def test_tables_of_spark_have_the_columns_of_the_brokers_tables(
    name: str, schema: str, lacks: list[tuple[str, str]]
) -> None:
    ours = columns_in(query(name))

    assert ours
    assert ours + lacks == columns_in((PROJECT / f"sql/schema/{schema}.sql").read_text())


def columns_in(definition: str) -> list[tuple[str, str]]:
    """Name and type of each column of a table, which stand at the beginning of a line."""
    return re.findall(r"^    (\w+) +(\w+(?:\([^)]*\))?)", definition, re.MULTILINE)


def test_the_view_of_sparks_dead_letters_is_the_brokers_view() -> None:
    ours = query("spark_dead_letters", database="d").replace("d.dead_letter_versions", "TABLE")
    theirs = (PROJECT / "sql/schema/050_dead_letters.sql").read_text()
    theirs = theirs.replace("${dead_letter_versions}", "TABLE").replace(
        "${dead_letters}", "dead_letters"
    )

    assert theirs.endswith(f"{ours};\n")
