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
