"""What prevents a start. Raised in any room of the broker, and printed by broker/server.py."""


class StartError(Exception):
    """The broker cannot start. The message is one sentence: what to change."""
