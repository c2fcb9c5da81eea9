"""Topics that are made because somebody asks for them in Metadata."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.support.waiting import until

_WAIT_S = 1.9
"""A broker waits 2 s for a new topic, and then says that it is unknown."""


def made_on_demand(ask: Callable[[], Any], code_of: Callable[[Any], int]) -> Any:
    """The answer that has the topic. On a busy machine one without it may come, late enough."""
    answers: list[Any] = []

    def is_made() -> bool:
        began = time.monotonic()
        answers.append(ask())
        if code_of(answers[-1]) == 0:
            return True
        assert time.monotonic() - began > _WAIT_S, "the broker waits for the topic"
        return False

    until(is_made, "the topic is made")
    return answers[-1]
