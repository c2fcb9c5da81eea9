"""A member of a consumer group that sends any request in any version, as a test wants.

It has a connection of its own and one request at a time. A test may send a request and receive the
answer later, because the answers to JoinGroup and SyncGroup wait for other members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from brokerhouse.broker.api import APIS
from brokerhouse.protocol import errors
from brokerhouse.protocol.versions import ApiKey
from tests.support import messages
from tests.support.messages import Target
from tests.support.wire import Wire

NEWEST = 99
RANGE = (("range", messages.SUBSCRIPTION),)


class Member:
    """`era`: the version of every request, or the newest of an API with fewer versions."""

    def __init__(
        self,
        wire: Wire,
        group_id: str,
        *,
        era: int = NEWEST,
        instance_id: str | None = None,
        protocol_type: str = "consumer",
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        session_timeout_ms: int = 30_000,
        rebalance_timeout_ms: int = 30_000,
    ) -> None:
        self.wire = wire
        self.group_id = group_id
        self.instance_id = instance_id
        self.protocol_type = protocol_type
        self.protocols = protocols
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.protocol_name = ""
        self._era = era
        self._sent: list[tuple[Any, int, int]] = []

    def version(self, key: ApiKey) -> int:
        return min(max(self._era, APIS[key].min_version), APIS[key].max_version)

    # JoinGroup

    def send_join(self) -> None:
        self._send(
            messages.join(
                self.group_id,
                member_id=self.member_id,
                instance_id=self.instance_id,
                protocol_type=self.protocol_type,
                protocols=self.protocols,
                session_timeout_ms=self.session_timeout_ms,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
            )
        )

    def receive_join(self) -> Any:
        answer = self._receive()
        if answer.error_code in (0, errors.MemberIdRequired.code):
            self.member_id = answer.member_id
        if answer.error_code == 0:
            self.generation = answer.generation_id
            self.leads = answer.leader == answer.member_id
            self.protocol_name = answer.protocol_name
        return answer

    def try_join(self) -> Any:
        """The answer to one JoinGroup."""
        self.send_join()
        return self.receive_join()

    def take_id(self) -> None:
        """Get a member id first, if the version and the kind of member need that (KIP-394)."""
        if self.version(ApiKey.JoinGroup) >= 4 and self.instance_id is None:
            answer = self.try_join()
            assert answer.error_code == errors.MemberIdRequired.code
            assert answer.member_id

    def begin_join(self) -> None:
        """Send JoinGroup; the answer comes with the next generation."""
        if not self.member_id:
            self.take_id()
        self.send_join()

    def join(self) -> Any:
        self.begin_join()
        answer = self.receive_join()
        assert answer.error_code == 0
        return answer

    # SyncGroup

    def send_sync(self, assignments: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._send(
            messages.sync(
                self.group_id,
                self.member_id,
                self.generation,
                assignments,
                instance_id=self.instance_id,
                protocol_type=self.protocol_type,
                protocol_name=self.protocol_name,
            )
        )

    def receive_sync(self) -> Any:
        return self._receive()

    def sync(self, assignments: Mapping[str, bytes] = MappingProxyType({})) -> Any:
        self.send_sync(assignments)
        return self.receive_sync()

    def settle(self, assignment: bytes = messages.ASSIGNMENT) -> None:
        """Join and sync as the only member."""
        self.join()
        assert self.leads
        answer = self.sync({self.member_id: assignment})
        assert (answer.error_code, answer.assignment) == (0, assignment)

    # The rest: error codes

    def heartbeat(self, **changed: Any) -> int:
        asked: dict[str, Any] = {
            "member_id": self.member_id,
            "generation": self.generation,
            "instance_id": self.instance_id,
        }
        self._send(messages.heartbeat(self.group_id, **asked | changed))
        return int(self._receive().error_code)

    def leave(self) -> int:
        self._send(messages.leave(self.group_id, (self.member_id, self.instance_id)))
        answer = self._receive()
        if self.version(ApiKey.LeaveGroup) < 3 or answer.error_code:
            return int(answer.error_code)
        (member,) = answer.members
        return int(member.error_code)

    def commit(self, target: Target, offset: int = 1, **changed: Any) -> int:
        asked: dict[str, Any] = {
            "member_id": self.member_id,
            "generation": self.generation,
            "instance_id": self.instance_id,
        }
        self._send(messages.commit(self.group_id, (target, {0: offset}), **asked | changed))
        (topic,) = self._receive().topics
        (partition,) = topic.partitions
        return int(partition.error_code)

    def _send(self, request: Any) -> None:
        version = self.version(ApiKey(request.API_KEY))
        self._sent.append((request, version, self.wire.send_request(request, version)))

    def _receive(self) -> Any:
        request, version, correlation_id = self._sent.pop(0)
        return self.wire.receive_response(request, version, correlation_id)
