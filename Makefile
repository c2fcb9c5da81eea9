# make run    makes .venv, installs, starts a broker; ARGS passes flags to `brokerhouse serve`
# make test   installs what the tests need and runs them; ARGS passes arguments to pytest
# make lint   style and types
# make bench  throughput and latency beside the bare engine
# make bench-groups  consumer groups: time to join, latency of commits
# make fuzz   the long run with random input
#
# PYTHON names the interpreter that .venv is made with (3.11 or newer). An installation is repeated
# when what it is made from has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
INSTALLED_DEV := $(VENV)/installed-dev
INPUTS := pyproject.toml setup.py $(wildcard protocol/*.pyx protocol/*.pxd protocol/*.h)
ARGS ?=

.PHONY: run test lint format bench bench-groups fuzz clean
.DEFAULT_GOAL := run

run: $(INSTALLED)
	@exec $(BIN)/brokerhouse serve $(ARGS)

test: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/pytest $(ARGS)

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED_DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED_DEV)
	@tools/require bench
	$(BIN)/python -m bench $(ARGS)

bench-groups: $(INSTALLED_DEV)
	$(BIN)/python -m bench.groups $(ARGS)

fuzz: $(INSTALLED_DEV)
	$(BIN)/pytest -m fuzz --timeout 0 $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info protocol/*.so protocol/_records.c .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	@tools/require python $(PYTHON)
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

# Both stamps: what is installed here includes what `make run` needs.
$(INSTALLED_DEV): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[test,lint]'
	@touch $(INSTALLED) $@
