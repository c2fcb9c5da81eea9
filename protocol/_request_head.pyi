"""Types of `_request_head.pyx`, which says what each means."""

class RequestHeader:
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None

    def __init__(
        self, api_key: int, api_version: int, correlation_id: int, client_id: str | None
    ) -> None: ...

def decode_head(frame: bytes) -> tuple[RequestHeader, int]: ...
