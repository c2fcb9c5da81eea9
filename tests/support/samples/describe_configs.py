"""DescribeConfigs: one config of a topic, and every config of the broker."""

from typing import Any

from kafka.protocol.admin import DescribeConfigsRequest

from tests.support.messages import Target
from tests.support.samples import BROKER_TYPE, TOPIC_TYPE, Asked, Sample


def request(target: Target, version: int) -> DescribeConfigsRequest:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            resource(
                resource_type=TOPIC_TYPE,
                resource_name=target.name,
                configuration_keys=["retention.ms"],
            ),
            resource(resource_type=BROKER_TYPE, resource_name="1", configuration_keys=None),
        ],
        include_synonyms=True,
        include_documentation=True,
    )


def check(asked: Asked, answer: Any) -> None:
    topic, node = answer.results
    assert (topic.error_code, topic.resource_name) == (0, asked.target.name)
    (config,) = topic.configs
    assert (config.name, config.value) == ("retention.ms", "604800000")
    assert (config.read_only, config.config_source, config.is_sensitive) == (False, 5, False)
    if asked.version >= 3:
        assert config.config_type == 5
        assert config.documentation
    assert (node.error_code, node.resource_name) == (0, "1")
    assert {"node.id", "message.max.bytes"} <= {config.name for config in node.configs}


SAMPLE = Sample(request, check, names_the_topic=True)
