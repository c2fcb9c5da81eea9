"""What the table of a feed needs, whoever fills it: the hidden column, and a memory for tokens."""

from __future__ import annotations

from coordinator.feeds.definition import BLOCK_COLUMN

WINDOW = 10_000
"""Blocks that a table remembers at least: a feeder that was paused for longer would be a danger."""
BLOCK_DEFINITION = (
    f"{BLOCK_COLUMN} LowCardinality(String) MATERIALIZED getSetting('insert_deduplication_token')"
)
