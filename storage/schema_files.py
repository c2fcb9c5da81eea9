"""The files of sql/schema/: what their first line says, and how their placeholders are filled in.

The first line says what the file makes or changes, and what that is in database `brokerhouse` of a
cluster, where every name means the whole cluster:

    -- table NAME; cluster: rows of all shards
    -- view NAME; cluster: same view, all shards
    -- index of TABLE; cluster: nothing
    -- setting of TABLE; cluster: nothing
    -- column of TABLE; cluster: rows of all shards
    -- codecs of TABLE; cluster: nothing

`Whole` lists what may follow `cluster:`. Then come comment lines and one statement, in which these
placeholders may stand:

    ${NAME}                        a table or view, with its database where there are several
    ${engine(MergeTree)}           this engine, or the replicated one of the same kind
    ${deduplication_window(1000)}  the setting for a window of this many blocks
    ${row_bytes}                   bytes of key and value of a row of the log
    ${global}                      GLOBAL, before every JOIN and IN of a view over all shards
    ${on_shard}, ${in_cluster}     at the start of a line that stands only there

A file never changes its meaning once released: what comes later is a new file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.resources import files
from string import Template

from brokerhouse.storage.engine import DATABASE

REPLICATED_WINDOW = 10_000
"""Blocks that a replicated table remembers at most: each is a node in Keeper."""
REPLICATED_WINDOW_S = 86_400
"""And for how long."""
SAME_ON_REPLICAS = ("remove_empty_parts",)
"""Settings of a table that mean the same whether it is replicated or not."""


ROW_BYTES = "ifNull(length(key), 0) + ifNull(length(value), 0)"
"""Bytes of key and value of a row, for every ClickHouse from 24.8 on."""
ROW_BYTES_BY_SIZES = "ifNull(key.size, 0) + ifNull(value.size, 0)"
"""The same for the ClickHouse that is in chDB, which stores the sizes of strings apart: the values
are not read (measured: 0.11 instead of 0.26 us of CPU for a row of 100 bytes)."""


class SchemaError(Exception):
    """The tables do not fit this version of the program, or a file in sql/schema/ is malformed."""


class FileKind(Enum):
    """What a file makes or changes."""

    TABLE = "table"
    VIEW = "view"
    INDEX = "index of"
    SETTING = "setting of"
    COLUMN = "column of"
    CODECS = "codecs of"


_BEGINNINGS = {
    FileKind.TABLE: "CREATE TABLE IF NOT EXISTS ",
    FileKind.VIEW: "CREATE OR REPLACE VIEW ",
    FileKind.INDEX: "ALTER TABLE ",
    FileKind.SETTING: "ALTER TABLE ",
    FileKind.COLUMN: "ALTER TABLE ",
    FileKind.CODECS: "ALTER TABLE ",
}
_CHANGES = {
    FileKind.INDEX: " ADD INDEX IF NOT EXISTS ",
    FileKind.SETTING: " MODIFY SETTING ",
    FileKind.COLUMN: " ADD COLUMN IF NOT EXISTS ",
    FileKind.CODECS: " MODIFY COLUMN ",
}


class Whole(Enum):
    """What a table or view of the shards is in the whole cluster."""

    UNION = "rows of all shards"
    AGAIN = "same view, all shards"
    LOCAL = "same view, one shard"
    """Over the tables of one shard, which every shard has alike."""
    OWN = "own statement"
    """In cluster/NAME.sql, over `shard_NAME`, which has the rows of all shards."""
    NOTHING = "nothing"
    """People have no use for it; or it is a change that the rows do not show."""


_KINDS = "|".join(kind.value for kind in FileKind)
_WHOLES = "|".join(whole.value for whole in Whole)
_FIRST_LINE = re.compile(rf"-- ({_KINDS}) ([a-z_]+); cluster: ({_WHOLES})")
_CODECS = re.compile(r"(,?\s+MODIFY COLUMN \w+ CODEC\(\w+(, \w+(\(\d+\))?)*\))+")
_COMMENT_LINE = re.compile(r"^--.*\n", re.MULTILINE)
_BARE_SOURCE = re.compile(r"\b(?:FROM|(?<!ARRAY )JOIN)\s+(?=\w)(\S+)")
_LOOK_UP = re.compile(r"(?<!ARRAY )\bJOIN\b|\bIN\b")


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """One numbered file. `subject`: the table or view that it makes or changes."""

    number: int
    name: str
    kind: FileKind
    subject: str
    whole: Whole
    text: str
    """Comments and the statement, without the first line."""

    @property
    def statement(self) -> str:
        """The statement, its placeholders not yet filled in."""
        return statement_of(self.text)


def statement_of(text: str) -> str:
    """A file's statement, without comment lines and the `;` at its end."""
    return _without_comments(text).removesuffix(";\n")


def _without_comments(text: str) -> str:
    return _COMMENT_LINE.sub("", text)


@cache
def schema_files() -> Sequence[SchemaFile]:
    """Every numbered file, in order; read once. Raises `SchemaError`."""
    found = []
    for file in files("brokerhouse.sql.schema").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(parse(int(number), name, file.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda one: one.number))


def parse(number: int, name: str, content: str) -> SchemaFile:
    """One file. Raises `SchemaError` if it is not as this module says."""
    first, _, text = content.partition("\n")
    match = _FIRST_LINE.fullmatch(first)
    if match is None:
        raise SchemaError(f"{name} does not begin with a line like: -- view NAME; cluster: nothing")
    file = SchemaFile(number, name, FileKind(match[1]), match[2], Whole(match[3]), text)
    bare = _without_comments(text)
    if bare.find(";\n") != len(bare) - 2:
        raise SchemaError(f"{name} is not one statement that ends with ;")
    if "--" in file.statement:
        raise SchemaError(f"{name} has a comment that is not a line of its own")
    _check_statement(file)
    return file


def _check_statement(file: SchemaFile) -> None:
    statement, subject = file.statement, file.subject
    beginning = f"{_BEGINNINGS[file.kind]}${{{subject}}}"
    if not statement.startswith(beginning):
        raise SchemaError(f"{file.name} does not begin with: {beginning}")
    if bare := _BARE_SOURCE.search(statement):
        raise SchemaError(f"{file.name} reads from {bare[1]}: write ${{{bare[1]}}}")
    if file.kind is FileKind.TABLE:
        if statement.count("\nENGINE = ${engine(") != 1:
            raise SchemaError(f"table {subject} has no line like: ENGINE = ${{engine(MergeTree)}}")
        if "replicated_deduplication_window" in statement:
            raise SchemaError(
                f"table {subject} has a window of its own: write ${{deduplication_window(1000)}}"
            )
        if file.whole in (Whole.AGAIN, Whole.LOCAL):
            raise SchemaError(f"{subject} is a table, not a view")
    elif file.kind is not FileKind.VIEW:
        change = statement.removeprefix(beginning)
        if not change.startswith(_CHANGES[file.kind]) or (
            "," in change and file.kind not in (FileKind.COLUMN, FileKind.CODECS)
        ):
            raise SchemaError(f"{file.name} is not one {file.kind.value} {subject}")
        wanted = Whole.UNION if file.kind is FileKind.COLUMN else Whole.NOTHING
        if file.whole is not wanted:
            raise SchemaError(f"{file.name} changes {subject}: write cluster: {wanted.value}")
        if file.kind is FileKind.CODECS and not _CODECS.fullmatch(change):
            raise SchemaError(f"{file.name} changes more than the codecs of {subject}")
        setting = change.removeprefix(_CHANGES[file.kind])
        if file.kind is FileKind.SETTING and not setting.startswith(
            ("${deduplication_window(", *SAME_ON_REPLICAS)
        ):
            raise SchemaError(
                f"{file.name} changes a setting of {subject} that may differ on replicas"
            )
    elif file.whole is Whole.AGAIN:
        if statement.count("${global}") != len(_LOOK_UP.findall(statement)):
            raise SchemaError(f"view {subject} has a JOIN or IN without ${{global}} before it")
        if "max(minute)" in statement and "_shard_num" not in statement:
            raise SchemaError(f"view {subject} does not ask each shard how far its log is counted")


def replaced_unread(found: Sequence[SchemaFile]) -> dict[int, int]:
    """Views that are replaced before another file reads them: their numbers, and by which file.

    Only the last one has to be made where none is there yet: a view takes some milliseconds.
    """
    replaced: dict[int, int] = {}
    unread: dict[str, int] = {}
    for file in found:
        if file.kind is FileKind.VIEW and file.subject in unread:
            replaced[unread.pop(file.subject)] = file.number
        for name in _Template(file.statement).get_identifiers():
            unread.pop(name, None)
        if file.kind is FileKind.VIEW:
            unread[file.subject] = file.number
    return replaced


def tables_behind() -> dict[str, frozenset[str]]:
    """For each table and view: the tables that a statement with its name reads from."""
    found: dict[str, frozenset[str]] = {}
    for file in schema_files():
        if file.kind is FileKind.TABLE:
            found[file.subject] = frozenset({file.subject})
        elif file.kind is FileKind.VIEW:
            names = _Template(file.statement).get_identifiers()
            found[file.subject] = frozenset().union(*(found.get(name, ()) for name in names))
    return found


@dataclass(frozen=True, slots=True)
class Rendering:
    """What the placeholders stand for. The defaults are for one database, on any ClickHouse."""

    database: str = ""
    """The database of every table and view."""
    subject_database: str = ""
    """The database of the table or view that is made or changed, if it is another one."""
    replicated: bool = False
    """The servers of a shard replicate its tables."""
    spans_shards: bool = False
    """The tables are those of the whole cluster."""
    row_bytes: str = ROW_BYTES
    """Bytes of key and value of a row."""

    def fill_in(self, file: SchemaFile, text: str, known: Collection[str]) -> str:
        """`text` of `file`, its placeholders filled in. `known`: every table and view there is.

        Raises `SchemaError`.
        """
        elsewhere = "${on_shard}" if self.spans_shards else "${in_cluster}"
        lines = text.splitlines(keepends=True)
        template = _Template("".join(one for one in lines if not one.startswith(elsewhere)))
        return template.substitute(
            {one: self._value(one, file, known) for one in template.get_identifiers()}
        )

    def _value(self, placeholder: str, file: SchemaFile, known: Collection[str]) -> str:
        name, _, argument = placeholder.removesuffix(")").partition("(")
        match name:
            case "engine":
                return self._engine(argument, file.subject)
            case "deduplication_window":
                return self._deduplication_window(int(argument))
            case "row_bytes":
                return self.row_bytes
            case "global":
                return "GLOBAL " if self.spans_shards else ""
            case "on_shard" | "in_cluster":
                return ""
            case file.subject:
                return self.subject(file)
            case _ if name in known:
                return _placed(self.database, name)
        raise SchemaError(f"{file.name} reads from {name}: there is no table or view {name}")

    def subject(self, file: SchemaFile) -> str:
        """The table or view that is made or changed, with its database."""
        return _placed(self.subject_database or self.database, file.subject)

    def _engine(self, definition: str, subject: str) -> str:
        if not self.replicated:
            return definition
        name, _, arguments = definition.removesuffix(")").partition("(")
        place = f"'/clickhouse/tables/{{shard}}/{DATABASE}/{subject}', '{{replica}}'"
        return f"Replicated{name}({place}{', ' if arguments else ''}{arguments})"

    def _deduplication_window(self, blocks: int) -> str:
        if not self.replicated:
            return f"non_replicated_deduplication_window = {blocks}"
        return (
            f"replicated_deduplication_window = {min(blocks, REPLICATED_WINDOW)}"
            f", replicated_deduplication_window_seconds = {REPLICATED_WINDOW_S}"
        )


class _Template(Template):
    braceidpattern = r"[^{}]+"


def _placed(database: str, name: str) -> str:
    return f"{database}.{name}" if database else name
