"""The handshake of ClickHouse's Go driver over HTTP, and so of Grafana's ClickHouse plugin.

clickhouse-go (https://github.com/ClickHouse/clickhouse-go, conn_http.go) sends the revision that it
speaks as `client_protocol_version`, opens each connection with HELLO, reads the answer as a block
of that revision, and everything after it as blocks of the revision that the answer names. This
interface writes blocks of revision 0, as ClickHouse does for clients that send no version. So only
the answer to HELLO is written as the client's revision wants it, and that answer names revision 0.

Blocks: https://clickhouse.com/docs/native-protocol/columns and
https://clickhouse.com/docs/interfaces/formats/Native.
"""

from __future__ import annotations

import json

from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.hidden_from_readers import DISPLAY_NAME
from brokerhouse.storage.blocks import STRING, UINT32, Type

HELLO = b"SELECT displayName(), version(), revision(), timezone()"
# What the engine is asked instead, and how: one row, or none with a `limit` or `offset` set.
FACTS = {
    Role.READER: b"SELECT '%s', version(), timezone()" % DISPLAY_NAME.encode(),
    Role.WRITER: b"SELECT displayName(), version(), timezone()",
}
FACTS_FORMAT = "JSONCompactEachRow"

REVISION = 0
# A byte after each column's type says whether its values are serialized in the default way.
CUSTOM_SERIALIZATION_REVISION = 54454

# Fields by number and a zero at the end: 1, no overflow row of totals; 2, no bucket (-1).
_BLOCK_INFO = b"\x01\x00\x02\xff\xff\xff\xff\x00"


def is_hello(client_revision: int, fmt: str, sql: bytes) -> bool:
    return client_revision > REVISION and fmt == "Native" and sql.strip() == HELLO


def hello_block(client_revision: int, facts: bytes) -> bytes:
    """The answer to HELLO for a client of this revision; `facts` is what the engine said."""
    rows = [json.loads(line) for line in facts.splitlines()]
    columns: tuple[tuple[str, Type, list[object]], ...] = (
        ("displayName()", STRING, [name for name, _, _ in rows]),
        ("version()", STRING, [version for _, version, _ in rows]),
        ("revision()", UINT32, [REVISION for _ in rows]),
        ("timezone()", STRING, [timezone for _, _, timezone in rows]),
    )
    default = b"\x00" if client_revision >= CUSTOM_SERIALIZATION_REVISION else b""
    block = _BLOCK_INFO + bytes((len(columns), len(rows)))
    for name, kind, values in columns:
        block += STRING.encode((name, kind.name)) + default + kind.encode(values)
    return block
