"""The compiled modules. Everything else about the distribution stands in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

SHARED = [
    str(path)
    for folder in ("protocol", "feeds/values")
    for path in Path("brokerhouse", folder).glob("*.pxd")
]

setup(
    # A wheel takes all that is in the build folder; build/lib.* may be that of an earlier layout.
    options={"build": {"build_base": "build/brokerhouse"}},
    ext_modules=[
        Extension(
            f"brokerhouse.{name.replace('/', '.')}",
            [f"brokerhouse/{name}.pyx"],
            depends=SHARED,
            extra_compile_args=["-O3"],
        )
        for name in (
            "protocol/_batches",
            "protocol/_decode_batches",
            "protocol/_encode_batches",
            "protocol/_frames",
            "protocol/_packed_blocks",
            "protocol/_produce_request",
            "protocol/_produce_response",
            "protocol/_request_head",
            "feeds/values/_plan",
            "feeds/values/_reader",
            "feeds/values/_scan",
            "storage/_merge_blocks",
            "storage/_result_bytes",
        )
    ],
)
