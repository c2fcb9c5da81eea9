"""Reading the outside of ClickHouse SQL: where its tokens, its FORMAT clause and its inline data are.

The text of a client is never changed by searching in it: a lexer that knows strings, quoted identifiers,
comments, heredocs and parentheses walks it, and what is added goes between two tokens. Everything here works
on bytes, because the data that follows an INSERT is not text. Nothing here knows what a query means: whether
it may run is asked of the engine's own parser (storage/sql_access.py).

Lexical rules: https://clickhouse.com/docs/sql-reference/syntax
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    WORD = "word"  # a bare identifier or keyword
    QUOTED = "quoted"  # `a`, "a"
    STRING = "string"  # 'a', $tag$a$tag$
    NUMBER = "number"
    SIGN = "sign"  # any other single character
    BROKEN = "broken"  # a string, identifier or comment that never ends


@dataclass(frozen=True, slots=True)
class Token:
    kind: Kind
    start: int
    end: int
    text: bytes

    def is_word(self, *words: bytes) -> bool:
        """Whether this is one of these keywords (given in upper case), in any case of letters."""
        return self.kind is Kind.WORD and self.text.upper() in words

    def is_sign(self, *signs: bytes) -> bool:
        return self.kind is Kind.SIGN and self.text in signs


# Whitespace as the engine sees it: ASCII, and the Unicode spaces that editors and chat programs leave behind.
_SPACE = re.compile(
    rb"(?:[ \t\n\r\f\v]|\xc2\x85|\xc2\xa0|\xe1\x9a\x80|\xe1\xa0\x8e|\xe2\x80[\x80-\x8d\xa8\xa9\xaf]"
    rb"|\xe2\x81[\x9f\xa0]|\xe3\x80\x80|\xef\xbb\xbf)+"
)
_WORD = re.compile(rb"[A-Za-z_][A-Za-z0-9_$]*|\$(?!\$)[A-Za-z0-9_$]*")
_NUMBER = re.compile(rb"[0-9][A-Za-z0-9_]*(?:\.[0-9][A-Za-z0-9_]*)?")
_HEREDOC = re.compile(rb"\$[A-Za-z0-9_]*\$")
_LINE_COMMENT = re.compile(rb"(?:--|\xe2\x80\x94|#!|# )[^\n]*")
_COMMENT_EDGE = re.compile(rb"/\*|\*/")
_SINGLE = re.compile(rb"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_BACKTICK = re.compile(rb"`(?:[^`\\]|\\.|``)*`", re.DOTALL)
_DOUBLE = re.compile(rb'"(?:[^"\\]|\\.|"")*"', re.DOTALL)
_CURLY_SINGLE = re.compile(rb"\xe2\x80\x98.*?\xe2\x80\x99", re.DOTALL)
_CURLY_DOUBLE = re.compile(rb"\xe2\x80\x9c.*?\xe2\x80\x9d", re.DOTALL)
