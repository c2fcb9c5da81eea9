"""UpdateFeatures (57), versions 0 to 2: sets the levels of features (KIP-584).

    v1 kind of change, validation without a change; v2 one outcome for all features (KIP-1022)

Each feature has one level, which cannot change (`features.py`), so only this level can be set, and
a request changes as much as one that only validates: nothing. As in Kafka, all features of a
request succeed, or none, and a feature that the broker does not have is at level 0.

Errors: INVALID_UPDATE_VERSION (a feature that is not listed, another level, no such change). The
message names all features that are wrong: `kafka-features upgrade --release-version` asks for
every feature of Kafka.
"""

from __future__ import annotations

from kafka.protocol.admin import UpdateFeaturesRequest, UpdateFeaturesResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.broker.api.features import LEVELS
from brokerhouse.protocol.errors import InvalidUpdateVersion

_KINDS = frozenset({1, 2, 3})  # upgrade, safe downgrade, unsafe downgrade


async def update_features(
    ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    updates = request.feature_updates
    for one in updates:
        if ctx.version >= 1 and one.upgrade_type not in _KINDS:
            raise InvalidUpdateVersion(
                f"The upgrade type {one.upgrade_type} of {one.feature} does not exist."
            )
    problems = [_problem(one.feature, one.max_version_level) for one in updates]
    if any(problems):
        raise InvalidUpdateVersion(" ".join(filter(None, problems)))
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    return UpdateFeaturesResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        results=[result(feature=one.feature, error_code=0, error_message=None) for one in updates],
    )


def _problem(feature: str, level: int) -> str:
    """Why the feature cannot be at this level; empty if it is."""
    only = LEVELS.get(feature, 0)
    if level == only:
        return ""
    if feature not in LEVELS:
        return f"This broker does not have the feature {feature!r}; leave it out."
    return f"{feature} is at level {only}; it cannot be set to {level}."


API = Api(UpdateFeaturesRequest, UpdateFeaturesResponse, versions=(0, 2), handler=update_features)
