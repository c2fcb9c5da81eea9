"""A topic, as the logs of its partitions know it. All topics: broker/topics/catalog.py.

Both the catalogs and the logs import it, and it knows neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from brokerhouse.broker.settings.effective_configs import EffectiveTopicConfig


@dataclass(frozen=True)
class Topic:
    """One topic. `configs` holds only what was set on the topic; `config` is what applies."""

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]
    config: EffectiveTopicConfig = field(compare=False, repr=False)
    version: int = 1
