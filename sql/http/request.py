"""What one HTTP request asks of the SQL interface, and whom it says it comes from.

ClickHouse's parameters, headers and forms (https://clickhouse.com/docs/interfaces/http) become an
`SqlRequest`; nothing here runs SQL or writes an answer. Bytes that are not UTF-8 stay as they are.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from aiohttp import BodyPartReader, web

from brokerhouse.common.text_table import word_set
from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.body import Patience
from brokerhouse.sql.http.codings import choose
from brokerhouse.sql.http.errors import sql_error
from brokerhouse.sql.http.handles import ExternalTable
from brokerhouse.sql.http.held_bytes import Hold
from brokerhouse.sql.http.sessions import SESSION_TIMEOUT_MAX_S, SESSION_TIMEOUT_S

DEFAULT_FORMAT = "TabSeparated"
MAX_QUERY_BYTES = 256 * 1024  # the engine's own default of max_query_size
# How far a request may raise it. To check a statement takes some 100 times its size.
MAX_QUERY_BYTES_ALLOWED = {Role.READER: 2 * 1024 * 1024, Role.WRITER: 64 * 1024 * 1024}
FORM_MAX_BYTES = {Role.READER: 8 * 1024 * 1024, Role.WRITER: 64 * 1024 * 1024}
# One compressed block of a body: ClickHouse's Go driver makes one of a whole batch.
BLOCK_MAX_BYTES = {Role.READER: 2 * 1024 * 1024, Role.WRITER: 256 * 1024 * 1024}
FORM_CHUNK_BYTES = 64 * 1024
_REVISION_DIGITS = 19

# Parameters of the interface itself; every other one is a setting of the engine.
_OWN_PARAMETERS = word_set("""
    query database default_format query_id session_id session_timeout session_check close_session
    user password quota_key role compress decompress wait_end_of_query buffer_size
    client_protocol_version stacktrace
""")
_UNCHECKED = "http_native_compression_disable_checksumming_on_decompress"
# Settings that only say what an HTTP answer is to look like. They are acted on here, or ask for
# what is not served here.
_HTTP_SETTINGS = {_UNCHECKED} | word_set("""
    enable_http_compression http_zlib_compression_level send_progress_in_http_headers
    add_http_cors_header http_headers_progress_interval_ms
    cancel_http_readonly_queries_on_client_close http_response_buffer_size
    http_wait_end_of_query http_write_exception_in_output_format
""")


@dataclass(slots=True)
class SqlRequest:
    """What one request asks for."""

    method: str
    query_id: str
    role: Role
    query: bytes = b""
    database: str | None = None
    default_format: str | None = None
    settings: dict[str, str] = field(default_factory=dict)
    params: dict[str, bytes] = field(default_factory=dict)
    session_id: str | None = None
    session_timeout_s: int = SESSION_TIMEOUT_S
    session_check: bool = False
    session_close: bool = False
    wait_end: bool = False
    coding: str | None = None
    block_method: str | None = None
    """Of the blocks that the answer is wanted in (compressed_blocks.py)."""
    in_blocks: bool = False  # the body is in such blocks
    check_sums: bool = True  # of these
    client_revision: int = 0  # of the Native format
    tables: tuple[ExternalTable, ...] = ()
    answer_begun: bool = False  # some of the answer has been sent
    time_limit: asyncio.Timeout | None = None
    max_time_s: float | None = None
    started_ns: int = field(default_factory=time.monotonic_ns)

    def allow_as_much_time_again(self) -> None:
        """The statement has ended in time; the same time is for its client to read the result."""
        if self.time_limit is not None and self.max_time_s is not None:
            self.time_limit.reschedule(asyncio.get_running_loop().time() + self.max_time_s)

    def max_query_bytes(self) -> int:
        text = self.settings.get("max_query_size", "")
        wanted = int(text) if text.isdecimal() and len(text) < 19 else MAX_QUERY_BYTES
        allowed = MAX_QUERY_BYTES_ALLOWED[self.role]
        return min(wanted or allowed, allowed)


async def read_form(
    request: web.Request, role: Role, hold: Hold, patience: Patience
) -> tuple[dict[str, str], dict[str, bytes]]:
    """Fields and files of a form, as they came. Raises BAD_ARGUMENTS, QUERY_IS_TOO_LARGE and
    StalledError.
    """
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise sql_error(48, "NOT_IMPLEMENTED", "A form cannot have a Content-Encoding here")
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}
    size = 0
    try:
        parts = await request.multipart()
        while (part := await patience.wait(parts.next())) is not None:
            if not isinstance(part, BodyPartReader) or part.name is None:
                raise ValueError("a part without a name")
            content = bytearray()
            while chunk := await patience.wait(part.read_chunk(FORM_CHUNK_BYTES)):
                patience.came(len(chunk))
                content += chunk
                size += len(chunk)
                hold.add(len(chunk))
                if size > FORM_MAX_BYTES[role]:
                    raise sql_error(
                        223,
                        "QUERY_IS_TOO_LARGE",
                        f"A form can have {FORM_MAX_BYTES[role]} bytes here",
                    )
            if part.filename is None:
                fields[part.name] = content.decode("utf-8", "surrogateescape")
            else:
                files[part.name] = bytes(content)
    except (ValueError, AssertionError) as error:
        raise sql_error(36, "BAD_ARGUMENTS", f"The form cannot be read: {error}") from error
    return fields, files


def external_tables(
    wanted: SqlRequest, values: dict[str, str], files: dict[str, bytes]
) -> tuple[ExternalTable, ...]:
    """https://clickhouse.com/docs/engines/table-engines/special/external-data"""
    tables = []
    for name, data in files.items():
        structure = values.get(f"{name}_structure")
        if structure is None and (types := values.get(f"{name}_types")):
            structure = ", ".join(f"_{n} {kind}" for n, kind in enumerate(types.split(","), 1))
        if structure is None:
            raise sql_error(36, "BAD_ARGUMENTS", f"{name}_structure or {name}_types is missing")
        fmt = values.get(f"{name}_format") or DEFAULT_FORMAT
        tables.append(ExternalTable(name, structure.encode("utf-8", "surrogateescape"), fmt, data))
        for suffix in ("structure", "types", "format"):
            wanted.settings.pop(f"{name}_{suffix}", None)
    return tuple(tables)


def read_request(request: web.Request, role: Role, values: dict[str, str]) -> SqlRequest:
    headers = request.headers
    query_id = values.get("query_id") or str(uuid.uuid4())
    if not query_id.isprintable():
        raise sql_error(36, "BAD_ARGUMENTS", "A query_id has printable characters only")
    wanted = SqlRequest(
        method=request.method,
        query_id=query_id,
        role=role,
        query=values.get("query", "").encode("utf-8", "surrogateescape"),
        database=values.get("database") or headers.get("X-ClickHouse-Database") or None,
        default_format=values.get("default_format") or headers.get("X-ClickHouse-Format") or None,
        session_id=values.get("session_id") or None,
        session_check=values.get("session_check") in ("1", "true"),
        session_close=values.get("close_session") in ("1", "true"),
        wait_end=values.get("wait_end_of_query") in ("1", "true")
        or values.get("http_wait_end_of_query") in ("1", "true"),
        in_blocks=values.get("decompress") in ("1", "true"),
        check_sums=values.get(_UNCHECKED) not in ("1", "true"),
    )
    if values.get("compress") in ("1", "true"):
        wanted.block_method = values.get("network_compression_method", "LZ4")
    if values.get("role") not in (None, "", role.value):
        raise sql_error(
            512, "SET_NON_GRANTED_ROLE", f"Role {values['role']} is not granted to the current user"
        )
    if "session_timeout" in values:
        text = values["session_timeout"]
        if not text.isdecimal() or not 0 <= int(text) <= SESSION_TIMEOUT_MAX_S:
            raise sql_error(374, "INVALID_SESSION_TIMEOUT", f"Invalid session timeout: '{text}'")
        wanted.session_timeout_s = int(text)
    if revision := values.get("client_protocol_version"):
        if not revision.isdecimal() or not revision.isascii() or len(revision) > _REVISION_DIGITS:
            raise sql_error(
                72, "CANNOT_PARSE_NUMBER", f"client_protocol_version is not a number: {revision!r}"
            )
        wanted.client_revision = int(revision)
    if role is Role.READER and values.get("readonly") == "1":
        del values["readonly"]  # as it is; the engine does not let a reader set it again
    for name, value in values.items():
        if not name.isidentifier() or not name.isascii():
            raise sql_error(
                115, "UNKNOWN_SETTING", f"{name!r} is neither a setting nor a parameter"
            )
        if name.startswith("param_"):
            wanted.params[name.removeprefix("param_")] = value.encode("utf-8", "surrogateescape")
        elif name not in _OWN_PARAMETERS and name not in _HTTP_SETTINGS:
            wanted.settings[name] = value
    if values.get("enable_http_compression") not in ("0", "false"):
        wanted.coding = choose(headers.get("Accept-Encoding", ""))
    return wanted


def url_parameters(request: web.Request) -> dict[str, str]:
    """As they came, byte for byte: bytes that are not UTF-8 become surrogates.

    Of parameters with the same name the last one counts.
    """
    _, _, text = request.raw_path.partition("?")
    return dict(parse_qsl(text.partition("#")[0], keep_blank_values=True, errors="surrogateescape"))
