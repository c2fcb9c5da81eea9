"""The lexer for SQL: its tokens, the place of the output clause, and the head of an INSERT."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerhouse.sql.http.text import (
    InsertData,
    NotAnInsert,
    TokenKind,
    Unfinished,
    identifier,
    insert_head,
    is_enclosed,
    literal,
    output_clauses,
    tokens,
    unquote,
)

SPACES = st.sampled_from(
    [b" ", b"\n", b"\t", b"\r\n", "\u00a0".encode(), b" /* ; */ ", b" -- x'\n", b" #! `\n"]
)
NAMES = st.from_regex(rb"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: (
        name.upper()
        not in (b"FORMAT", b"SELECT", b"WITH", b"VALUES", b"FROM", b"TABLE", b"FUNCTION")
    )
)
LEFT, RIGHT = b"\xe2\x80\x98", b"\xe2\x80\x99"  # typographic quotes, as from a word processor
TEXTS = st.binary(max_size=12)
ATOMS = st.one_of(
    NAMES,
    st.integers(0, 10**9).map(lambda n: str(n).encode()),
    TEXTS.map(literal),
    st.text(max_size=8).map(identifier),
    TEXTS.filter(lambda text: b"$" not in text).map(lambda text: b"$h$" + text + b"$h$"),
    st.just(b"(1, 'format JSON', f(x))"),
    st.just(b"[1, (2)]"),
    st.just(b"{p:String}"),
)
ALIASED = st.tuples(ATOMS, NAMES).map(lambda pair: pair[0] + b" AS " + pair[1])


def spaced(words: list[bytes], spaces: list[bytes]) -> bytes:
    return b"".join(word + space for word, space in zip(words, spaces, strict=False))


@given(st.binary(max_size=200))
def test_tokens_of_any_bytes_are_in_order_and_do_not_overlap(sql: bytes) -> None:
    position = 0
    for token in tokens(sql):
        assert position <= token.start < token.end <= len(sql)
        assert token.text == sql[token.start : token.end]
        position = token.end


@given(st.binary(max_size=200))
def test_between_tokens_there_is_only_space_and_comment(sql: bytes) -> None:
    rest = bytearray(sql)
    for token in tokens(sql):
        rest[token.start : token.end] = b" " * (token.end - token.start)
    assert not list(tokens(bytes(rest))), "a token was skipped"


@given(TEXTS)
def test_a_literal_is_one_string_whatever_is_in_it(value: bytes) -> None:
    (token,) = tokens(literal(value))
    assert token.kind is TokenKind.STRING


@given(st.text(max_size=20))
def test_a_quoted_identifier_is_one_name_whatever_is_in_it(name: str) -> None:
    (token,) = tokens(identifier(name))
    assert token.kind is TokenKind.QUOTED
    assert unquote(token) == name.encode()


@pytest.mark.parametrize(
    ("sql", "texts"),
    [
        (b"a--b\nc", [b"a", b"c"]),
        (b"a # b\nc", [b"a", b"c"]),
        (b"a #! b\nc", [b"a", b"c"]),
        (b"a /* b /* c */ d */ e", [b"a", b"e"]),
        (b"'a''b\\'c' d", [b"'a''b\\'c'", b"d"]),
        (b'`a``b` "c""d"', [b"`a``b`", b'"c""d"']),
        (b"$a$ ' $a$ b", [b"$a$ ' $a$", b"b"]),
        (b"$$ ; $$ b", [b"$$ ; $$", b"b"]),
        (b"$a$b c", [b"$a$b", b"c"]),
        (b"$a b", [b"$a", b"b"]),
        (LEFT + b"a' b" + RIGHT + b" c", [LEFT + b"a' b" + RIGHT, b"c"]),
        ('“a" b” c'.encode(), ['“a" b”'.encode(), b"c"]),
        ("\u00a0a\u200b\ufeffb\u3000".encode(), [b"a", b"b"]),
        (b"1e-5.x", [b"1e", b"-", b"5", b".", b"x"]),
        (b"a'b", [b"a", b"'b"]),
        (b"a /* b", [b"a", b"/* b"]),
    ],
)
def test_tokens_are_cut_as_clickhouse_cuts_them(sql: bytes, texts: list[bytes]) -> None:
    assert [token.text for token in tokens(sql)] == texts


@pytest.mark.parametrize(
    "sql", [b"'a", b'"a', b"`a", b"/* a", b"/* /* a */", LEFT + b"a", "“a".encode()]
)
def test_a_string_or_comment_without_an_end_is_broken(sql: bytes) -> None:
    assert [token.kind for token in tokens(sql)] == [TokenKind.BROKEN]


@given(
    st.lists(ALIASED, min_size=1, max_size=4),
    NAMES,
    st.lists(SPACES, min_size=12, max_size=12),
    st.booleans(),
)
def test_the_format_at_the_end_is_found_however_it_is_written(
    columns: list[bytes], fmt: bytes, spaces: list[bytes], settings: bool
) -> None:
    words = [b"SELECT", b", ".join(columns), b"FORMAT", fmt]
    words += [b"SETTINGS", b"a = 'FORMAT b'"] if settings else []
    sql = b" " + spaced([*words, b";"], spaces)
    clause = output_clauses(sql)[0]
    assert clause.format == fmt.decode()
    assert re.match(rb"(?s)\s*SELECT", sql[: clause.position])
    assert [t.text for t in tokens(sql[clause.position :])][:2] == [b"FORMAT", fmt]


@given(st.lists(ALIASED, min_size=1, max_size=4), st.lists(SPACES, min_size=12, max_size=12))
def test_a_missing_format_belongs_after_the_last_token(
    columns: list[bytes], spaces: list[bytes]
) -> None:
    sql = spaced([b"SELECT", b", ".join(columns), b";"], spaces)
    (clause,) = output_clauses(sql)
    assert clause.format is None
    assert [token.text for token in tokens(sql[clause.position :])] == [b";"]


@pytest.mark.parametrize(
    "sql",
    [
        b"SELECT format b",
        b"SELECT a, format b",
        b"SELECT 1 AS format",
        b"SELECT t.format b",
        b"SELECT 'FORMAT JSON'",
        b"SELECT (SELECT 1 FORMAT JSON)",
        b"SELECT format FROM t",
        b"SELECT x AND format b",
        b"SELECT 1 -- FORMAT JSON",
        b"SELECT 1 /* FORMAT JSON */",
        b"SELECT $x$ FORMAT JSON$x$",
        b"SELECT a FORMAT JSON WHERE 1",
    ],
)
def test_a_column_called_format_is_not_a_format_clause(sql: bytes) -> None:
    assert output_clauses(sql)[0].format is None


@pytest.mark.parametrize("alias", [b"as", b"AS", b"select", b"format"])
def test_any_word_after_as_is_a_name(alias: bytes) -> None:
    assert output_clauses(b"SELECT 1 AS " + alias + b" FORMAT JSON")[0].format == "JSON"


@pytest.mark.parametrize("fmt", [b"`JSON`", b'"JSON"', "“JSON”".encode()])
def test_a_format_may_be_quoted(fmt: bytes) -> None:
    assert output_clauses(b"SELECT 1 FORMAT " + fmt)[0].format == "JSON"


@pytest.mark.parametrize(
    ("sql", "statement", "fmt", "data"),
    [
        (b"INSERT INTO t FORMAT CSV\n1,2", b"INSERT INTO t", "CSV", b"1,2"),
        (b"INSERT INTO t FORMAT CSV \r\n1", b"INSERT INTO t", "CSV", b"1"),
        (b"INSERT INTO t FORMAT CSV 1", b"INSERT INTO t", "CSV", b"1"),
        (b"INSERT INTO t FORMAT CSV\n\n1", b"INSERT INTO t", "CSV", b"\n1"),
        (b"insert into t format Native\n\x00'`\xff", b"insert into t", "Native", b"\x00'`\xff"),
        (b"INSERT INTO t VALUES (1)", b"INSERT INTO t", "Values", b" (1)"),
        (b"INSERT INTO t(a, b)VALUES(1)", b"INSERT INTO t(a, b)", "Values", b"(1)"),
        (b"INSERT INTO TABLE a.b (x) VALUES", b"INSERT INTO TABLE a.b (x)", "Values", b""),
        (b"INSERT INTO values VALUES (1)", b"INSERT INTO values", "Values", b" (1)"),
        (b"INSERT INTO format FORMAT CSV\n", b"INSERT INTO format", "CSV", b""),
        (b"INSERT INTO format.values FORMAT CSV\n", b"INSERT INTO format.values", "CSV", b""),
        (b"INSERT INTO `FORMAT CSV` FORMAT TSV\n1", b"INSERT INTO `FORMAT CSV`", "TSV", b"1"),
        (
            b"INSERT INTO t (values) SETTINGS a='VALUES' FORMAT TSV\n1",
            b"INSERT INTO t (values) SETTINGS a='VALUES'",
            "TSV",
            b"1",
        ),
        (b"INSERT INTO {t:Identifier} FORMAT TSV\n1", b"INSERT INTO {t:Identifier}", "TSV", b"1"),
        (b"/* x */ INSERT INTO t -- y\nFORMAT TSV\n1", b"/* x */ INSERT INTO t", "TSV", b"1"),
    ],
)
def test_an_insert_is_split_into_its_parts(
    sql: bytes, statement: bytes, fmt: str, data: bytes
) -> None:
    head = insert_head(sql, complete=True)
    assert isinstance(head, InsertData)
    whole = b" ".join(part for part in (head.target, head.settings) if part)
    assert (whole, head.format, sql[head.data_start :]) == (statement, fmt, data)


def test_the_source_of_an_insert_is_placed_before_its_settings() -> None:
    head = insert_head(b"INSERT INTO t (a) SETTINGS x = 1 FORMAT CSV\n1", complete=True)
    assert isinstance(head, InsertData)
    statement = b"INSERT INTO t (a) FROM INFILE 'f' SETTINGS x = 1 FORMAT `CSV`"
    assert head.statement(b"FROM INFILE 'f'") == statement


@pytest.mark.parametrize(
    "sql",
    [
        b"SELECT 1",
        b"INSERT INTO t SELECT 1 FORMAT CSV",
        b"INSERT INTO t (SELECT 1)",
        b"INSERT INTO t WITH x AS (SELECT 1) SELECT * FROM x",
        b"INSERT INTO t FROM INFILE 'x' FORMAT CSV",
        b"INSERT INTO t",
        b"INSERT INTO t FORMAT",
        b"",
        b"INSERT INTO t 'x",
    ],
)
def test_a_statement_without_inline_data_is_all_sql(sql: bytes) -> None:
    assert isinstance(insert_head(sql, complete=True), NotAnInsert)


@given(
    NAMES,
    NAMES,
    st.binary(max_size=30),
    st.lists(SPACES, min_size=4, max_size=4),
    st.integers(0, 200),
)
def test_an_insert_that_comes_in_two_pieces_is_read_the_same(
    table: bytes, fmt: bytes, data: bytes, spaces: list[bytes], cut: int
) -> None:
    sql = spaced([b"INSERT", b"INTO", table, b"FORMAT"], spaces) + b" " + fmt + b"\n" + data
    first = insert_head(sql[:cut], complete=False)
    if isinstance(first, Unfinished):
        first = insert_head(sql, complete=True)
    assert isinstance(first, InsertData)
    assert first.format == fmt.decode()
    assert sql[first.data_start :] == data


@pytest.mark.parametrize(
    ("text", "enclosed"),
    [
        (b"a String, b Tuple(Int8, Int8)", True),
        (b"a String DEFAULT ')'", True),
        (b"a String) ENGINE = Memory AS (SELECT 1", False),
        (b"a String; SELECT 1", False),
        (b"a String DEFAULT 'x", False),
        (b"(", False),
    ],
)
def test_only_a_balanced_structure_stays_inside_its_parentheses(
    text: bytes, enclosed: bool
) -> None:
    assert is_enclosed(text) is enclosed
