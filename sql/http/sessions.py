"""Sessions (`session_id`): temporary tables and SET values that outlive one statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from brokerhouse.sql.http.access import Role
from brokerhouse.sql.http.engine import Handle
from brokerhouse.sql.http.errors import sql_error
from brokerhouse.sql.http.pool import StatementPool

SESSIONS_MAX = 200
SESSION_TIMEOUT_S = 60
SESSION_SET_MAX_BYTES = 256 * 1024  # without credentials
SESSION_TIMEOUT_MAX_S = 3600


@dataclass(slots=True)
class SqlSession:
    """Keeps temporary tables and SET values between the statements of one client."""

    key: tuple[Role, str]
    busy: bool = False
    handle: Handle | None = None  # only once there is something to keep
    set_bytes: int = 0
    restore: list[bytes] = field(default_factory=list)  # undo one request's settings
    expiry: asyncio.TimerHandle | None = None

    def will_hold(self, sql: bytes) -> None:
        """Count what a statement leaves in the session. Raises MEMORY_LIMIT_EXCEEDED."""
        self.set_bytes += len(sql)
        if self.key[0] is Role.READER and self.set_bytes > SESSION_SET_MAX_BYTES:
            raise sql_error(
                241,
                "MEMORY_LIMIT_EXCEEDED",
                f"The SET statements of a session may have {SESSION_SET_MAX_BYTES} bytes together:"
                " begin a new session",
            )


class Sessions:
    """All sessions, by role and name: a reader never gets a writer's session."""

    def __init__(self, pool: StatementPool) -> None:
        self._pool = pool
        self._sessions: dict[tuple[Role, str], SqlSession] = {}

    @asynccontextmanager
    async def use(
        self, role: Role, session_id: str, timeout_s: int, *, must_exist: bool, last: bool
    ) -> AsyncIterator[SqlSession]:
        """The session of this name, for one statement.

        `last`: the session ends with this statement. Raises SESSION_NOT_FOUND, SESSION_IS_LOCKED,
        and TOO_MANY_SIMULTANEOUS_QUERIES if there are SESSIONS_MAX that hold something.
        """
        key = (role, session_id)
        session = self._sessions.get(key)
        if session is None:
            if must_exist:
                raise sql_error(372, "SESSION_NOT_FOUND", f"Session {session_id} not found")
            self._make_room()
            session = self._sessions[key] = SqlSession(key)
        if session.busy:
            raise sql_error(
                373, "SESSION_IS_LOCKED", f"Session {session_id} is locked by a concurrent client"
            )
        session.busy = True
        if session.expiry is not None:
            session.expiry.cancel()
        try:
            yield session
        finally:
            session.busy = False
            if last:
                self._expire(key)
            else:
                loop = asyncio.get_running_loop()
                session.expiry = loop.call_later(timeout_s, self._expire, key)

    def _make_room(self) -> None:
        """If there are too many, forget the oldest one that holds nothing."""
        if len(self._sessions) < SESSIONS_MAX:
            return
        for key, session in self._sessions.items():
            if not session.busy and session.handle is None:
                self._expire(key)
                return
        raise sql_error(
            202,
            "TOO_MANY_SIMULTANEOUS_QUERIES",
            f"Too many sessions with SET values or temporary tables: {SESSIONS_MAX}",
        )

    def _expire(self, key: tuple[Role, str]) -> None:
        session = self._sessions.get(key)
        if session is None or session.busy:
            return
        del self._sessions[key]
        if session.expiry is not None:
            session.expiry.cancel()
        if session.handle is not None:
            self._pool.close_handle(session.handle)

    def close(self) -> None:
        """End all of them. No statement may run in one any more."""
        for key in tuple(self._sessions):
            self._sessions[key].busy = False
            self._expire(key)
