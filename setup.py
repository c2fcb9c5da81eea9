"""The compiled module. Everything else about the distribution stands in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("protocol._records", ["protocol/_records.pyx"], extra_compile_args=["-O3"])
    ]
)
