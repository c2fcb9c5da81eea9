"""One sample per API key: a valid request, and what the answer to it must say in each version.

The sample of a key lies in the file of its name, as its handler does in `broker/api/`:
DescribeLogDirs in `describe_log_dirs.py`. It lies here and not with the handler, because the
package that users install should not hold test data.

Tests cut the samples, change their bytes, and send them in every version. Samples change nothing
permanently, except Produce, OffsetCommit and JoinGroup: topics are created, deleted and altered
with `validate_only`, or under a name that does not exist. Two groups belong to the samples: one has
offsets and no members, the other has members that join and leave within milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from kafka.protocol.api_message import ApiMessage

from brokerhouse.broker.api import APIS
from brokerhouse.protocol.versions import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.messages import Target

TOPIC_TYPE = 2
BROKER_TYPE = 4
OFFSETS_GROUP = "samples-offsets"
MEMBERS_GROUP = "samples-members"
STATIC_MEMBER = "samples-static"
NO_TRANSACTIONAL_ID = "samples-nobody"
ALL_OPERATIONS = {3, 4, 5, 6, 7, 8, 10, 11}
GROUP_OPERATIONS = {3, 6, 8, 10, 11}
NOT_ASKED = None  # what the client's decoder returns for the field's default


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sample was sent about, and in which version.

    The topic `target` has one partition. It holds `messages.small_batch` at least once. The group
    `OFFSETS_GROUP` has committed offset 1 for it, with the metadata "a note".
    """

    broker: BrokerProcess
    target: Target
    version: int

    def is_named_in(self, topic: Any) -> None:
        """Asserts that `topic`, of an answer to OffsetCommit or OffsetFetch, is the target."""
        if self.version >= 10:
            assert topic.topic_id == self.target.topic_id
        else:
            assert topic.name == self.target.name


@dataclass(frozen=True, slots=True)
class Sample:
    """What the tests know of one API key.

    `request` is answered without an error, except by groups to members that do not exist.
    `check` asserts what the answer must say.
    """

    request: Callable[[Target, int], ApiMessage]
    check: Callable[[Asked, Any], None]
    throttle_time_since: int | None = None
    """The version from which the throttle time is checked: this broker throttles nobody."""
    names_the_topic: bool = False
    """Whether the answer has an error code if the target does not exist."""


def file_of(key: ApiKey) -> str:
    """The name of a key's file, here and in `broker/api/`: describe_log_dirs."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", key.name).lower()


def of(key: ApiKey) -> Sample:
    """The sample of a key. Raises `ModuleNotFoundError` if nobody has written one."""
    found = import_module(f"{__name__}.{file_of(key)}").SAMPLE
    assert isinstance(found, Sample)
    return found


def sample(key: ApiKey, version: int, target: Target) -> ApiMessage:
    """The valid request of this key in this version."""
    return of(key).request(target, version)


def every_version() -> list[tuple[ApiKey, int]]:
    """Every key in every version that the broker serves."""
    return [
        (api.key, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ]
