"""Python's module zstd: in the standard library since 3.14, a backport before."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
