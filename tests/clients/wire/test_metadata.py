"""Metadata: which topics are listed, and which are created because a client asks for them."""

from __future__ import annotations

import pytest
from kafka.protocol.metadata import MetadataRequest

from brokerhouse.protocol import errors
from tests.support.messages import Target
from tests.support.on_demand import made_on_demand
from tests.support.wire import Wire

pytestmark = pytest.mark.one_broker("asks one connection for every partition and group")


class TestMetadata:
    @pytest.mark.parametrize("version", range(1, 14))
    def test_null_topics_list_all_topics(self, wire: Wire, known: Target, version: int) -> None:
        answer = wire.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), version)
        assert known.name in {topic.name for topic in answer.topics}

    @pytest.mark.parametrize("version", range(14))
    def test_an_empty_list_of_topics_lists_none_except_in_version_0(
        self, wire: Wire, known: Target, version: int
    ) -> None:
        answer = wire.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False), version)
        assert bool(answer.topics) is (version == 0)

    @pytest.mark.parametrize("version", range(14))
    def test_metadata_creates_a_topic_if_the_client_allows_it(
        self, wire: Wire, topic: str, version: int
    ) -> None:
        asked = MetadataRequest.MetadataRequestTopic(topic_id=None, name=topic)

        def code(allowed: bool) -> int:
            request = MetadataRequest(topics=[asked], allow_auto_topic_creation=allowed)
            return int(wire.ask(request, version).topics[0].error_code)

        if version >= 4:
            assert code(allowed=False) == errors.UnknownTopicOrPartition.code
        assert made_on_demand(lambda: code(allowed=True), int) == 0
        assert code(allowed=False) == 0
