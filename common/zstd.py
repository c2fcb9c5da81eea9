"""Python's module zstd: in the standard library since 3.14, a backport before.

Everybody takes it from here, so that the difference stands once.
"""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
