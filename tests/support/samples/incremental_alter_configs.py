"""IncrementalAlterConfigs, only validated: one list is appended to, one config removed."""

from kafka.protocol.admin import IncrementalAlterConfigsRequest

from tests.support.messages import Target
from tests.support.samples import TOPIC_TYPE, Sample
from tests.support.samples.alter_configs import check


def request(target: Target, version: int) -> IncrementalAlterConfigsRequest:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig
    changed = [
        config(name="cleanup.policy", config_operation=2, value="compact"),
        config(name="retention.ms", config_operation=1, value=None),
    ]
    return IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=TOPIC_TYPE, resource_name=target.name, configs=changed)],
        validate_only=True,
    )


SAMPLE = Sample(request, check, names_the_topic=True)
