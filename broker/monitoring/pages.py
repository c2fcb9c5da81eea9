"""The HTTP routes for monitoring: `/metrics`, `/live` and `/ready`.

Whoever reaches the listener may read them, as whoever reaches the Kafka port may list topics and
groups. Only web pages of other sites may not read `/metrics` through a visitor's browser
(sql/http/refuse_web_pages.py). `/live` and `/ready` say nothing of what is stored.
"""

from __future__ import annotations

from collections.abc import Set

from aiohttp import web

from brokerhouse.broker.monitoring.health import Health
from brokerhouse.broker.monitoring.scrape import Scraper
from brokerhouse.sql.http.errors import SqlError
from brokerhouse.sql.http.refuse_web_pages import refuse_other_sites, refuse_unknown_host

_HELP = (
    "There is nothing here: /metrics is for Prometheus, /live and /ready are for health checks."
    " SQL is answered by the cluster's ClickHouse servers.\n"
)


def bare_application() -> web.Application:
    """For a broker without an engine: `/ping`, and to everything else what this address is for."""
    app = web.Application()
    app.router.add_get("/ping", _alive)
    app.router.add_route("*", "/{path:.*}", _nothing)
    return app


class MonitoringPages:
    """Adds its routes to the application of the HTTP listener."""

    def __init__(self, scraper: Scraper, health: Health, hosts: Set[str]) -> None:
        """`hosts`: names of this server, the setting `http_hosts`."""
        self._scraper = scraper
        self._health = health
        self._hosts = hosts

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/live", _alive)
        app.router.add_get("/ready", self._ready)

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            refuse_other_sites(request)
            refuse_unknown_host(request, self._hosts)
        except SqlError as error:
            return web.Response(status=403, text=f"{error.message}\n")
        body, content_type = await self._scraper.scrape(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _ready(self, _request: web.Request) -> web.Response:
        why_not = self._health.unready()
        if why_not is None:
            return web.Response(text="Ok.\n")
        return web.Response(status=503, text=f"{why_not}\n")


async def _alive(_request: web.Request) -> web.Response:
    return web.Response(text="Ok.\n")


async def _nothing(_request: web.Request) -> web.Response:
    return web.Response(status=404, text=_HELP)
