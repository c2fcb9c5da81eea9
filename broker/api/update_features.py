"""UpdateFeatures (57), versions 0 to 2: sets the levels of features (KIP-584).

    v1 kind of change, validation without a change; v2 one outcome for all features (KIP-1022)

Each feature has one level, which cannot change (`features.py`), so only this level can be set. As
in Kafka, all features of a request succeed, or none.

Errors: INVALID_UPDATE_VERSION (a feature that is not listed, or another level).
"""

from __future__ import annotations

from kafka.protocol.admin import UpdateFeaturesRequest, UpdateFeaturesResponse

from broker.api.context import Api, RequestContext
from broker.api.features import LEVELS
from protocol.errors import InvalidUpdateVersion

_KINDS = frozenset({1, 2, 3})  # upgrade, safe downgrade, unsafe downgrade


async def update_features(
    ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse:
    updates = request.feature_updates
    for one in updates:
        _check(one.feature, one.max_version_level)
        if ctx.version >= 1 and one.upgrade_type not in _KINDS:
            raise InvalidUpdateVersion(f"{one.feature}: there is no change {one.upgrade_type}.")
    result = UpdateFeaturesResponse.UpdatableFeatureResult
    return UpdateFeaturesResponse(
        throttle_time_ms=0,
        error_code=0,
        error_message=None,
        results=[result(feature=one.feature, error_code=0, error_message=None) for one in updates],
    )


def _check(feature: str, level: int) -> None:
    only = LEVELS.get(feature)
    if only is None:
        raise InvalidUpdateVersion(f"This broker does not have the feature {feature!r}.")
    if level != only:
        raise InvalidUpdateVersion(f"{feature} is at level {only}; it cannot be set to {level}.")


API = Api(UpdateFeaturesRequest, UpdateFeaturesResponse, versions=(0, 2), handler=update_features)
