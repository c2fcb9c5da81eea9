"""DeleteGroups: a group that does not exist."""

from typing import Any

from kafka.protocol.admin import DeleteGroupsRequest

from brokerhouse.protocol import errors
from tests.support.messages import NO_GROUP, Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> DeleteGroupsRequest:
    return DeleteGroupsRequest(groups_names=[NO_GROUP])


def check(asked: Asked, answer: Any) -> None:
    (result,) = answer.results
    assert (result.group_id, result.error_code) == (NO_GROUP, errors.GroupIdNotFound.code)


SAMPLE = Sample(request, check, throttle_time_since=0)
