"""Whether this broker should be sent clients: what `/ready` says."""

from __future__ import annotations

from brokerhouse.broker.node import Node


class Health:
    """`begun` and `stopping` are set by broker/server.py."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.begun = False
        self.stopping = False

    def unready(self) -> str | None:
        """Why not, in one sentence; None if clients are served."""
        if self.stopping:
            return "the broker stops"
        if not self.begun:
            return "the broker starts"
        return self._node.unready()
