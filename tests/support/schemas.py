"""A schema registry for tests."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Schemas:
    """A server with the part of a schema registry's API that is asked; it may be told to fail."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        self.user: str | None = None
        schemas = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                schemas.asked.append(self.path)
                schemas.user = self.headers["Authorization"]
                status, answer = schemas.answers.get(self.path, (404, {"error_code": 40403}))
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # `shutdown` waits for the next look, which is each half second by default.
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://some:body@127.0.0.1:{self.server.server_port}/api/"

    def add(self, schema_id: int, schema: object, **more: object) -> None:
        """`schema`: of Avro."""
        self.add_text(schema_id, json.dumps(schema), **more)

    def add_text(self, schema_id: int, schema: str, **more: object) -> None:
        self.answers[f"/api/schemas/ids/{schema_id}"] = (200, {"schema": schema, **more})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
