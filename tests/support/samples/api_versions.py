"""ApiVersions."""

from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from brokerhouse.broker.api import APIS
from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="wire", client_software_version="1.0")


def check(asked: Asked, answer: Any) -> None:
    assert answer.error_code == 0
    assert [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys] == [
        (int(api.key), api.advertised_min, api.max_version) for api in APIS.values()
    ]


SAMPLE = Sample(request, check, throttle_time_since=1)
