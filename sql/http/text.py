"""Finds the tokens of ClickHouse SQL, the place of its FORMAT clause, and where inline data begins.

A client's text is never changed by search and replace: a lexer that knows strings, quoted
identifiers, comments, heredocs and parentheses walks it, and what is added goes between two tokens.
Everything here works on bytes, because the data that follows an INSERT is not text. Nothing here
knows what a query means: whether it may run is decided with the engine's own parser (access.py).

Lexical rules: https://clickhouse.com/docs/sql-reference/syntax
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class TokenKind(Enum):
    WORD = "word"  # a bare identifier or keyword
    QUOTED = "quoted"  # `a`, "a"
    STRING = "string"  # 'a', $tag$a$tag$
    NUMBER = "number"
    SIGN = "sign"  # any other single character
    BROKEN = "broken"  # a string, identifier or comment that never ends


@dataclass(frozen=True, slots=True)
class Token:
    kind: TokenKind
    start: int
    end: int
    text: bytes

    def is_word(self, *words: bytes) -> bool:
        """Whether this is one of these keywords (given in upper case), in any case of letters."""
        return self.kind is TokenKind.WORD and self.text.upper() in words

    def is_sign(self, *signs: bytes) -> bool:
        return self.kind is TokenKind.SIGN and self.text in signs


# Whitespace as the engine sees it: ASCII, and the Unicode spaces that editors and chat programs
# leave behind.
_SPACE = (
    rb"(?:[ \t\n\r\f\v]|\xc2\x85|\xc2\xa0|\xe1\x9a\x80|\xe1\xa0\x8e|\xe2\x80[\x80-\x8d\xa8\xa9\xaf]"
    rb"|\xe2\x81[\x9f\xa0]|\xe3\x80\x80|\xef\xbb\xbf)+"
)
# Tried in this order: of alternatives that begin alike, the first one that matches counts.
_TOKEN = re.compile(
    rb"(?P<skip>"
    + _SPACE
    + rb"|--[^\n]*|#[ !][^\n]*)"
    + rb"|(?P<comment>/\*)"
    + rb"|(?P<heredoc>\$[A-Za-z0-9_]*\$)"
    + rb"|(?P<number>[0-9][0-9A-Za-z_$]*)"
    + rb"|(?P<word>[A-Za-z_$][0-9A-Za-z_$]*)"
    + rb"|(?P<string>'(?:[^'\\]|\\.|'')*'|\xe2\x80\x98.*?\xe2\x80\x99)"
    + rb'|(?P<quoted>`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*"|\xe2\x80\x9c.*?\xe2\x80\x9d)'
    + rb"|(?P<open>['`\"]|\xe2\x80[\x98\x9c])"
    + rb"|(?P<sign>[\x00-\x7f]|[\xc2-\xf4][\x80-\xbf]*|[\x80-\xff])",
    re.DOTALL,
)
_COMMENT_EDGE = re.compile(rb"/\*|\*/")
_KINDS = {
    "number": TokenKind.NUMBER,
    "word": TokenKind.WORD,
    "string": TokenKind.STRING,
    "quoted": TokenKind.QUOTED,
    "sign": TokenKind.SIGN,
}


def tokens(sql: bytes, start: int = 0) -> Iterator[Token]:
    """The tokens of `sql`, without whitespace and comments.

    Lazy, so that data after an INSERT is never read. A string or comment without an end is one
    BROKEN token that reaches to the end, and the last.
    """
    position = start
    while position < len(sql):
        match = _TOKEN.match(sql, position)
        assert match is not None, "the last alternative takes any byte"
        group, end = match.lastgroup, match.end()
        if group == "comment":
            end = _comment_end(sql, end)
        elif group == "heredoc":
            close = sql.find(match.group(), end)
            if close >= 0:
                end = close + len(match.group())
                yield Token(TokenKind.STRING, position, end, sql[position:end])
            else:  # `$a$b` is a name when nothing closes it
                word = re.compile(rb"[0-9A-Za-z_$]*").match(sql, end)
                end = word.end() if word else end
                yield Token(TokenKind.WORD, position, end, sql[position:end])
        elif group == "open":
            end = -1
        elif group != "skip":
            assert group is not None
            yield Token(_KINDS[group], position, end, match.group())
        if end < 0:
            yield Token(TokenKind.BROKEN, position, len(sql), sql[position:])
            return
        position = end


def _comment_end(sql: bytes, position: int) -> int:
    """Past the end of a comment whose opening was read, or -1. Comments nest."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(sql, position)
        if edge is None:
            return -1
        depth += 1 if edge.group() == b"/*" else -1
        position = edge.end()
    return position


@dataclass(frozen=True, slots=True)
class OutputClause:
    """Where `INTO OUTFILE` may stand in a query, and the FORMAT that follows it."""

    position: int
    format: str | None  # None: the query names none, and one may be put at `position`


# After one of these words an expression goes on, so a following FORMAT is a column of that name.
_EXPRESSION_GOES_ON = frozenset(
    b"SELECT DISTINCT AS AND OR NOT BETWEEN IN LIKE ILIKE IS WHERE PREWHERE HAVING BY ON WHEN"
    b" THEN ELSE CASE "
    b"FROM JOIN USING LIMIT OFFSET ALL INTERVAL DIV MOD RETURNING QUALIFY".split()
)


def output_clauses(sql: bytes) -> list[OutputClause]:
    """The places where an output clause can go, the most likely one first; never empty.

    `SELECT 1 FORMAT JSON SETTINGS a = 1` takes it before FORMAT, any other query after its last
    token. The last place is always the plain end, for the rare query in which `FORMAT x` is a
    column and its alias.
    """
    depth = 0
    end = 0
    previous: Token | None = None
    candidate: tuple[int, Token] | None = None  # where FORMAT stands, and the name after it
    waiting: int | None = None  # FORMAT was read; its name has to follow
    is_name = False  # whether `previous` is an alias, whatever it says
    for token in tokens(sql):
        if token.is_sign(b";"):
            break
        if waiting is not None:
            named = token.kind in (TokenKind.WORD, TokenKind.QUOTED)
            candidate, waiting = ((waiting, token) if named else None), None
        elif token.is_sign(b"(", b"[", b"{"):
            depth += 1
        elif token.is_sign(b")", b"]", b"}"):
            depth -= 1
        elif depth == 0 and token.is_word(b"FORMAT") and (is_name or _ends_an_expression(previous)):
            waiting = end
        elif candidate is not None and candidate[1] is previous and not token.is_word(b"SETTINGS"):
            candidate = None
        # Behind AS any word is a name, AS itself too.
        is_name = not is_name and previous is not None and previous.is_word(b"AS")
        end, previous = token.end, token
    found = [OutputClause(end, None)]
    if candidate is not None:
        found.insert(
            0, OutputClause(candidate[0], unquote(candidate[1]).decode("utf-8", "replace"))
        )
    return found


def _ends_an_expression(token: Token | None) -> bool:
    if token is None:
        return False
    if token.kind is TokenKind.SIGN:
        return token.text in (b")", b"]", b"}", b"*")
    return not (token.kind is TokenKind.WORD and token.text.upper() in _EXPRESSION_GOES_ON)


def is_enclosed(text: bytes) -> bool:
    """Whether `text` stays inside of parentheses that are put around it."""
    depth = 0
    for token in tokens(text):
        depth += token.is_sign(b"(") - token.is_sign(b")")
        if depth < 0 or token.kind is TokenKind.BROKEN or token.is_sign(b";"):
            return False
    return depth == 0


def unquote(token: Token) -> bytes:
    """The name that an identifier token stands for."""
    text = token.text
    if token.kind is not TokenKind.QUOTED:
        return text
    if text.startswith(b"\xe2"):
        return text[3:-3]
    quote = text[:1]
    return re.sub(rb"\\(.)", rb"\1", text[1:-1].replace(quote * 2, quote), flags=re.DOTALL)


def literal(value: bytes) -> bytes:
    """A string literal that the engine reads as exactly these bytes."""
    return b"'" + value.replace(b"\\", b"\\\\").replace(b"'", b"\\'") + b"'"


def identifier(name: str) -> bytes:
    """A quoted identifier that the engine reads as exactly this name."""
    return b"`" + name.encode().replace(b"\\", b"\\\\").replace(b"`", b"\\`") + b"`"


class InsertHead:
    """The beginning of a statement, up to the data of an INSERT."""


@dataclass(frozen=True, slots=True)
class InsertData(InsertHead):
    """`INSERT INTO t ... FORMAT x` or `VALUES`: data follows the statement."""

    target: bytes  # INSERT INTO t (a, b)
    settings: bytes  # SETTINGS x = 1, or nothing
    format: str
    data_start: int

    def statement(self, source: bytes = b"") -> bytes:
        """The statement alone, with a clause that says where its data comes from."""
        return b" ".join((self.target, source, self.settings, b"FORMAT", identifier(self.format)))


class NotAnInsert(InsertHead):
    """Another statement, or an INSERT without data of its own (from a SELECT): it is all SQL."""


class Unfinished(InsertHead):
    """The text ends before it is clear which of the two it is."""


def insert_head(sql: bytes, *, complete: bool) -> InsertHead:
    """Reads the beginning of a statement; `complete` says that nothing follows `sql`.

    Bytes from `data_start` on are data: as in ClickHouse, blanks and one line end after the name
    of the format are not part of it, and everything after VALUES is.
    """
    words = tokens(sql)
    first = next(words, None)
    if first is None:
        return NotAnInsert() if complete else Unfinished()
    if first.end == len(sql) and not complete:
        return Unfinished()
    if not first.is_word(b"INSERT"):
        return NotAnInsert()
    depth = 0
    settings = -1  # where they begin
    in_name = True  # up to and with the table's name, any word is a name
    previous = first
    for token in words:
        if token.kind is TokenKind.BROKEN or (token.end == len(sql) and not complete):
            return NotAnInsert() if complete else Unfinished()
        if token.is_sign(b"(", b"{"):
            depth += 1
        elif token.is_sign(b")", b"}"):
            depth -= 1
        elif depth == 0 and previous.is_sign(b"."):
            pass
        elif depth == 0 and in_name:
            keyword = token.is_word(b"INTO", b"TABLE", b"FUNCTION") and previous.is_word(
                b"INSERT", b"INTO", b"TABLE"
            )
            in_name = keyword
        elif depth == 0 and token.is_word(b"FROM"):
            return NotAnInsert()
        elif depth == 0 and token.is_word(b"VALUES"):
            return _insert_data(sql, previous.end, settings, "Values", token.end)
        elif depth == 0 and token.is_word(b"FORMAT"):
            return _insert_format(sql, previous.end, settings, words, complete=complete)
        elif depth == 0 and token.is_word(b"SETTINGS") and settings < 0:
            settings = token.start
        elif token.is_word(b"SELECT", b"WITH") and (depth == 0 or previous.is_sign(b"(")):
            return NotAnInsert()
        if in_name and depth == 0 and token.is_sign(b"}"):
            in_name = False  # INSERT INTO {table:Identifier}
        previous = token
    return NotAnInsert() if complete else Unfinished()


def _insert_format(
    sql: bytes, end: int, settings: int, words: Iterator[Token], *, complete: bool
) -> InsertHead:
    name = next(words, None)
    if name is None or (name.end == len(sql) and not complete):
        return NotAnInsert() if complete else Unfinished()
    if name.kind not in (TokenKind.WORD, TokenKind.QUOTED):
        return NotAnInsert()
    data = re.compile(rb"[ \t\f]*;?[ \t\f]*(?:\r?\n)?").match(sql, name.end)
    assert data is not None, "the pattern matches nothing as well"
    if data.end() == len(sql) and not complete and not data.group().endswith(b"\n"):
        return Unfinished()
    fmt = unquote(name).decode("utf-8", "replace")
    return _insert_data(sql, end, settings, fmt, data.end())


def _insert_data(sql: bytes, end: int, settings: int, fmt: str, data_start: int) -> InsertData:
    if settings < 0:
        return InsertData(sql[:end], b"", fmt, data_start)
    return InsertData(sql[:settings].rstrip(), sql[settings:end], fmt, data_start)
