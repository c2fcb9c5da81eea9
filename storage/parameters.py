"""Python values as the text of ClickHouse query parameters (`{name:Type}`), names as identifiers.

ClickHouse reads a String parameter in its Escaped (TSV) form, arrays and maps in their literal
form: https://clickhouse.com/docs/interfaces/http#cli-queries-with-parameters
"""

from __future__ import annotations

from collections.abc import Mapping

from brokerhouse.storage.engine import Parameter

_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\0": "\\0"})


def parameter_texts(params: Mapping[str, Parameter] | None) -> dict[str, str]:
    """Every parameter in a form that the engine parses back to exactly the same value."""
    return {name: _text(value) for name, value in (params or {}).items()}


def quoted(name: str) -> str:
    """A name as an identifier of SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    """Text as a string of SQL."""
    return "'" + text.translate(_ESCAPES).replace("'", "\\'") + "'"


def _text(value: Parameter) -> str:
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{literal(k)}:{literal(v)}" for k, v in value.items()) + "}"
    return "[" + ",".join(literal(item) for item in value) + "]"
