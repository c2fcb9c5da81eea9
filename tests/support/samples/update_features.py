"""UpdateFeatures: to the level that the feature has."""

from typing import Any

from kafka.protocol.admin import UpdateFeaturesRequest

from tests.support.messages import Target
from tests.support.samples import Asked, Sample


def request(target: Target, version: int) -> UpdateFeaturesRequest:
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=2, allow_downgrade=False, upgrade_type=1
    )
    return UpdateFeaturesRequest(
        timeout_ms=1000, feature_updates=[update], validate_only=version >= 1
    )


def check(asked: Asked, answer: Any) -> None:
    assert (answer.error_code, answer.error_message) == (0, None)
    if asked.version <= 1:
        (result,) = answer.results
        assert (result.feature, result.error_code) == ("transaction.version", 0)


SAMPLE = Sample(request, check, throttle_time_since=0)
