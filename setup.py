"""The compiled modules. Everything else about the distribution stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

SHARED = [str(path) for path in Path("protocol").glob("*.pxd")]

setup(
    ext_modules=[
        Extension(
            f"protocol.{name}",
            [f"protocol/{name}.pyx"],
            depends=SHARED,
            extra_compile_args=["-O3"],
        )
        for name in ("_batches", "_decode_batches", "_encode_batches")
    ]
)
