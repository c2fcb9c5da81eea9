"""SQL of the commands that make and show feeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brokerhouse.broker.cli.sql import SqlServer, asked
from brokerhouse.storage.cluster_sql import SHARD_DATABASE
from brokerhouse.storage.engine import DATABASE
from brokerhouse.storage.parameters import parameter_texts


@dataclass(frozen=True)
class FeedServer:
    """SQL with bound parameters: of a single broker, or of a server of a cluster."""

    sql: SqlServer

    @cached_property
    def _databases(self) -> dict[str, str]:
        """Those that have the tables of this program, and the engine of the log there."""
        text = self._answer(
            "SELECT database, engine FROM system.tables WHERE name = 'messages' AND database IN"
            f" ('{DATABASE}', '{SHARD_DATABASE}') FORMAT JSONCompactEachRow",
            {},
            {},
        )
        return dict(map(json.loads, text.splitlines()))

    @property
    def is_of_cluster(self) -> bool:
        return SHARD_DATABASE in self._databases

    @property
    def is_replicated(self) -> bool:
        return self._databases.get(SHARD_DATABASE, "").startswith("Replicated")

    @property
    def database(self) -> str:
        """Where to read: of a cluster that is not distributed, one shard."""
        return DATABASE if DATABASE in self._databases else SHARD_DATABASE

    @property
    def stores(self) -> str:
        """Where definitions are written."""
        return SHARD_DATABASE if self.is_of_cluster else DATABASE

    def run(self, statement: str, settings: Mapping[str, str] | None = None, **params: str) -> None:
        self._answer(statement, settings or {}, params)

    def rows(self, statement: str, **params: str) -> list[dict[str, Any]]:
        text = self._answer(f"{statement} FORMAT JSONEachRow", {}, params)
        return [json.loads(line) for line in text.splitlines()]

    def _answer(
        self, statement: str, settings: Mapping[str, str], params: Mapping[str, str]
    ) -> str:
        bound = {f"param_{name}": text for name, text in parameter_texts(params).items()}
        quoting = {"output_format_json_quote_64bit_integers": "0"}
        return asked(self.sql, "/", {**quoting, **settings, **bound}, statement)
