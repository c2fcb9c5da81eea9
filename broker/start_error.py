"""Errors that prevent a start. Any room of the broker raises them, broker/server.py prints them."""


class StartError(Exception):
    """The broker cannot start. The message is one sentence: what to change."""
