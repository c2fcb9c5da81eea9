"""Every API that this broker serves: `APIS`. ApiVersions lists these, and no others.

Each API key has a file of its name: DescribeLogDirs has `describe_log_dirs.py`. The file opens
with the versions and how the broker behaves in them. It ends with `API`: message classes, versions
and handler. `APIS` collects the `API` of every file in this folder.

A new key needs three files: its file here, its sample in `tests/support/samples/`, which is sent in
every version, and `docs/clients.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import MappingProxyType

from brokerhouse.broker.api.context import Api


def _declared() -> Iterator[Api]:
    for file in iter_modules(__path__):
        api = getattr(import_module(f"{__name__}.{file.name}"), "API", None)
        if isinstance(api, Api):
            yield api


APIS: Mapping[int, Api] = MappingProxyType(
    {api.key: api for api in sorted(_declared(), key=lambda api: api.key)}
)
"""By ascending key, as ApiVersions lists them."""
