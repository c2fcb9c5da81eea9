"""Schemas by their ids, from any schema registry with Confluent's HTTP API.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import urllib3

_NOT_FOUND = 404
_LIMIT_S = 10.0
_RETRIES = 2
_REFERENCES_MAX = 100
_RETURNING_S = 30.0
"""How long a registry that was away may answer that it does not know an id that it knows: one that
keeps its schemas in a topic reads the topic again."""


class RegistryUnavailable(Exception):
    """The registry did not answer, or with what is no schema. It is worth asking again."""


@dataclass(frozen=True, slots=True)
class Schema:
    """`kind`: AVRO, PROTOBUF or JSON. `references`: the texts of all that it refers to, by name;
    each after those to which it refers itself."""

    kind: str
    text: str
    references: Mapping[str, str]


class SchemaRegistry:
    """Asks a registry. A schema of an id never changes, so it is asked for once."""

    def __init__(self, url: str) -> None:
        """`url`: with user and password, if the registry wants them."""
        parsed = urllib3.util.parse_url(url)
        self._url = parsed._replace(auth=None).url.rstrip("/")
        headers = urllib3.make_headers(basic_auth=parsed.auth) if parsed.auth else {}
        self._pool = urllib3.PoolManager(
            headers={**headers, "Accept": "application/json"},
            timeout=_LIMIT_S,
            retries=urllib3.Retry(_RETRIES, backoff_factor=0.1),
        )
        self._schemas: dict[int, Schema] = {}
        self._doubted_until = -1.0  # in time.monotonic()

    def schema(self, schema_id: int) -> Schema | None:
        """None if the registry does not know the id. Raises `RegistryUnavailable`."""
        if schema_id not in self._schemas:
            path = f"/schemas/ids/{schema_id}"
            answer = self._ask(path)
            if answer is None:
                if time.monotonic() < self._doubted_until:
                    raise RegistryUnavailable(f"{self._url}{path} is not there yet")
                return None
            references: dict[str, str] = {}
            self._add_references(answer, references)
            self._schemas[schema_id] = Schema(
                answer.get("schemaType", "AVRO"), self._text(answer), references
            )
        return self._schemas[schema_id]

    def _add_references(self, answer: dict[str, Any], texts: dict[str, str]) -> None:
        for reference in answer.get("references", ()):
            name = reference["name"]
            if name in texts:
                continue
            if len(texts) >= _REFERENCES_MAX:
                raise RegistryUnavailable(f"more than {_REFERENCES_MAX} references")
            subject, version = quote(reference["subject"], safe=""), reference["version"]
            path = f"/subjects/{subject}/versions/{version}"
            found = self._ask(path)
            if found is None:
                raise RegistryUnavailable(f"{self._url}{path} is referred to and is not there")
            self._add_references(found, texts)
            texts[name] = self._text(found)

    def _ask(self, path: str) -> dict[str, Any] | None:
        try:
            response = self._pool.request("GET", f"{self._url}{path}")
            if response.status == _NOT_FOUND:
                return None
            answer = response.json()
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            self._doubted_until = time.monotonic() + _RETURNING_S
            raise RegistryUnavailable(f"{self._url}{path}: {error}") from error
        if response.status >= 300 or not isinstance(answer, dict):
            self._doubted_until = time.monotonic() + _RETURNING_S
            raise RegistryUnavailable(f"{self._url}{path} answers {response.status}: {answer}")
        return answer

    def _text(self, answer: dict[str, Any]) -> str:
        if not isinstance(answer.get("schema"), str):
            raise RegistryUnavailable(f"{self._url} answers without a schema: {answer}")
        return str(answer["schema"])
