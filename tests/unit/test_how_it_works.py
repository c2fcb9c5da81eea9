"""docs/how-it-works.md names files, tables and views that exist, and everything in sql/schema/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerhouse.storage.schema_files import FileKind, schema_files

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXT = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([a-z-]+\.md)[^)]*\)")
VIEWS_IN_CELL = re.compile(r"\bviews? ((?:`\w+`(?:, )?)+)")
JOBS_IN_CELL = re.compile(r"\bjobs? ((?:`\w+`(?:, )?)+)")
ROOMS = sorted(
    path.parent.relative_to(ROOT)
    for room in (
        "broker",
        "common",
        "coordinator",
        "feeds",
        "protocol",
        "spark_jobs",
        "sql",
        "storage",
    )
    for path in (ROOT / room).rglob("__init__.py")
)
"""The folders whose `__init__.py` describes their files."""
SCHEMA_MIGRATIONS = "schema_migrations"
"""A table without a file: `storage/schema.py` makes it before it applies the first file."""


def section(heading: str) -> str:
    return TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without the line of titles and the one below it."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def names(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def tables_in_keeper() -> set[str]:
    texts = [path.read_text("utf-8") for path in (ROOT / "sql/schema/cluster").glob("*.sql")]
    make = re.compile(r"CREATE TABLE IF NOT EXISTS brokerhouse_shard\.(\w+)")
    return {name for text in texts for name in make.findall(text)}


TABLES = {file.subject for file in schema_files() if file.kind is FileKind.TABLE}
VIEWS = {
    file.subject: set(re.findall(r"\$\{([a-z_]+)\}", file.statement))
    for file in schema_files()
    if file.kind is FileKind.VIEW
}
"""The name of each view, and what its newest statement reads."""
ROWS = {cells[0]: cells for cells in rows("The tables")}


def reads(view: str) -> set[str]:
    """The tables and views that a view reads, those of other views included."""
    direct = VIEWS[view] - {view}
    return direct.union(*(reads(name) for name in direct if name in VIEWS))


def subjects(cells: list[str]) -> set[str]:
    """The tables that a row is about: the names before the colon of the first cell."""
    return names(re.split(r"[:;]| in Keeper", cells[0])[0])


def paragraphs() -> Iterator[str]:
    """Paragraphs and rows of tables, without blocks of code."""
    for block in re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.M)):
        yield from block.splitlines() if block.startswith("|") else [block]


def files_named() -> Iterator[Path]:
    """A name without a folder is in the folder that its paragraph or row named last."""
    yield from (ROOT / name for name in re.findall(r'\["([\w/.]+)<br/>', TEXT))
    for paragraph in paragraphs():
        first = folder = ROOT
        for name in re.findall(r"`([\w./-]+)`", paragraph):
            if name.endswith("/"):
                path = first / name if (first / name).is_dir() else ROOT / name
                first = path if first == ROOT else first
                folder = path
                yield path
            elif name != "__init__.py" and re.search(r"\w\.(py|pyx|sql|yml)$", name):
                path = ROOT / name if "/" in name or (ROOT / name).is_file() else folder / name
                folder = path.parent
                yield path


def test_every_file_and_folder_of_the_page_exists() -> None:
    found = list(files_named())
    assert len(found) > 150
    assert [str(path.relative_to(ROOT)) for path in found if not path.exists()] == []


@pytest.mark.parametrize("room", ROOMS, ids=str)
def test_every_file_that_the_head_of_a_folder_names_exists(room: Path) -> None:
    named = re.findall(r"(?<![\w/])(\w+\.pyx?)\b", (ROOT / room / "__init__.py").read_text())
    assert [name for name in named if not list((ROOT / room).rglob(name))] == []


def test_every_table_has_a_row_and_every_row_is_of_something_that_exists() -> None:
    named = set().union(*(subjects(cells) for cells in ROWS.values()))
    stored = TABLES | tables_in_keeper() | {SCHEMA_MIGRATIONS}
    assert stored - named == set()
    assert named - stored - set(VIEWS) == set()


def test_every_view_is_on_this_page_or_on_one_that_it_names_for_views() -> None:
    [[_, where]] = [cells for cells in rows("Finding things") if cells[0] == "a view"]
    pages = LINK.findall(where)
    assert pages
    texts = [TEXT, *((DOCS / page).read_text(encoding="utf-8") for page in pages)]
    assert {view for view in VIEWS if not any(f"`{view}`" in text for text in texts)} == set()


@pytest.mark.parametrize("cells", ROWS.values(), ids=ROWS)
def test_a_row_names_the_views_that_read_its_tables(cells: list[str]) -> None:
    tables = subjects(cells) & TABLES
    named = names(" ".join(VIEWS_IN_CELL.findall(cells[2])))
    assert named <= set(VIEWS)
    direct = {view for view, sources in VIEWS.items() if sources & tables}
    assert direct - named == set(), "views that read the table and are not named"
    assert {view for view in named if not reads(view) & tables} == set(), "views that do not"


@pytest.mark.parametrize("cells", ROWS.values(), ids=ROWS)
def test_every_job_of_a_row_exists(cells: list[str]) -> None:
    named = names(" ".join(JOBS_IN_CELL.findall(" ".join(cells))))
    jobs = {path.stem for path in (ROOT / "spark_jobs").iterdir()}
    assert named - jobs == set()
