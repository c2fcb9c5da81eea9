"""Reads the configs that administrators have set again when another broker has changed them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable

from common.tasks import Outage, Periodic
from storage.engine import EngineError
from storage.registry import LOOK_ANYWAY_S

log = logging.getLogger(__name__)

_WATCH_EVERY_S = 0.25


class ConfigWatch:
    """The task of one broker. Start and close `periodic`."""

    def __init__(self, load: Callable[[], Awaitable[None]], latest: Callable[[], int]) -> None:
        """`latest`: the version of the configs, as far as this broker knows without asking."""
        self._load = load
        self._latest = latest
        self._seen = -1
        self._looked_s = time.monotonic()
        self._outage = Outage(
            log, "configs cannot be read from the registry, retrying", "configs can be read again"
        )
        self.periodic = Periodic("configs-of-others", _WATCH_EVERY_S, self._look)

    async def _look(self) -> None:
        latest, now_s = self._latest(), time.monotonic()
        if latest == self._seen and now_s - self._looked_s < LOOK_ANYWAY_S:
            return
        try:
            await self._load()
        except EngineError as error:
            self._outage.failed(error)
        else:
            self._outage.worked()
            self._seen, self._looked_s = latest, now_s
