"""Runs Kafka's own command line tools against a broker: the classes that its scripts start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support import tools
from tests.support.broker_process import BrokerProcess
from tests.support.helper_process import HelperProcess

ACLS = "org.apache.kafka.tools.AclCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
LEADER_ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
METADATA_QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
REASSIGN_PARTITIONS = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
LIMIT_S = 60.0
_SUBCOMMANDS = frozenset({TRANSACTIONS, FEATURES, METADATA_QUORUM})


class Tools:
    """Runs the tools against one broker: in one JVM, or `alone` in a JVM of its own."""

    def __init__(self, broker: BrokerProcess, jvm: HelperProcess) -> None:
        self._broker = broker
        self._jvm = jvm

    def __call__(self, main_class: str, *arguments: str) -> str:
        """What the tool prints; fails when it fails."""
        return _without_errors(*self._run(main_class, *arguments))

    def alone(self, main_class: str, *arguments: str, typed: bytes = b"") -> str:
        command = [*tools.java_command(), main_class, *self._to_the_broker(arguments)]
        return _without_errors(*tools.run(command, limit_s=LIMIT_S, typed=typed))

    def complaint(self, main_class: str, *arguments: str) -> str:
        """The error that a tool prints; its exit code is still 0."""
        printed, errors = self._run(main_class, *arguments)
        assert "Exception" in errors, printed
        return errors

    def refused(self, main_class: str, *arguments: str) -> str:
        """All that a tool prints that fails."""
        ended = self._ended(main_class, *arguments)
        assert ended["code"] != 0, ended
        return f"{ended['stdout']}{ended['stderr']}"

    def _run(self, main_class: str, *arguments: str) -> tuple[str, str]:
        ended = self._ended(main_class, *arguments)
        assert ended["code"] == 0, ended
        return ended["stdout"], ended["stderr"]

    def _ended(self, main_class: str, *arguments: str) -> dict[str, Any]:
        if main_class in _SUBCOMMANDS:  # they want the broker before the subcommand
            to_the_broker = ["--bootstrap-server", self._broker.kafka, *arguments]
        else:
            to_the_broker = self._to_the_broker(arguments)
        ended: dict[str, Any] = self._jvm.ask("run", tool=main_class, arguments=to_the_broker)
        return ended

    def _to_the_broker(self, arguments: Sequence[str]) -> list[str]:
        return [*arguments, "--bootstrap-server", self._broker.kafka]


def _without_errors(printed: str, errors: str) -> str:
    assert "ERROR" not in errors, errors
    assert "Exception" not in errors, errors
    return printed
