"""Types of `_result_bytes.pyx`."""

from typing import Any

def result_bytes(result: Any) -> memoryview:
    """The bytes of a result of chDB, without a copy. They live as long as the view of them."""
