"""ApiVersions (18), versions 0 to 4: which API keys and versions this broker serves.

    v1 throttle time; v3 flexible, name and version of the client software
    v4 the version range of a feature may begin at 0

A request in an unknown version is answered in version 0 with UNSUPPORTED_VERSION and the list, so
that the client can retry (KIP-511). The features are those of `features.py`: `transaction.version`
says that clients may use transactions as in KIP-890.

Errors: INVALID_REQUEST (the name or version of the client software has characters that are not
allowed), UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse

from brokerhouse.broker.api import features
from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import InvalidRequest, UnsupportedVersion

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?", re.ASCII)


async def api_versions(ctx: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    named = _SOFTWARE.fullmatch(request.client_software_name or "")
    versioned = _SOFTWARE.fullmatch(request.client_software_version or "")
    if ctx.version >= 3 and not (named and versioned):
        return _answer(InvalidRequest.code, ())
    answer = _answer(0, ctx.apis.values())
    answer.supported_features = [
        ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=level, max_version=level)
        for name, level in features.LEVELS.items()
    ]
    answer.finalized_features = [
        ApiVersionsResponse.FinalizedFeatureKey(
            name=name, max_version_level=level, min_version_level=level
        )
        for name, level in features.LEVELS.items()
    ]
    answer.finalized_features_epoch = features.EPOCH
    return answer


def unsupported_api_versions(apis: Mapping[int, Api]) -> ApiVersionsResponse:
    """The answer, to be encoded in version 0, to an ApiVersions request of an unknown version."""
    return _answer(UnsupportedVersion.code, apis.values())


def _answer(error_code: int, listed: Iterable[Api]) -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=int(api.key), min_version=api.advertised_min, max_version=api.max_version
            )
            for api in listed
        ],
        throttle_time_ms=0,
    )


API = Api(ApiVersionsRequest, ApiVersionsResponse, versions=(0, 4), handler=api_versions)
