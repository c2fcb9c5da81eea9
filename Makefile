# make run    makes .venv, installs, starts a broker; ARGS passes flags to `brokerhouse serve`
# make test   installs what the tests need and runs them, in two lanes; ARGS passes arguments to one pytest
# make lint   style and types
# make bench  throughput and latency beside the bare engine
# make bench-groups  consumer groups: time to join, latency of commits
# make bench-scaling  what a cluster would take, by simulation
# make bench-spark  rows into Spark, by the data source and by Spark's Kafka source
# make test-spark   the long tests of Spark: 10 million records, Spark killed midway
# make fuzz   the long run with random input
# make history  clients while parts of a cluster are lost, at random: SEED=7 MINUTES=10
# make cluster       2 shards x 2 replicas of ClickHouse, 3 Keepers, 2 brokers, by Docker Compose;
#                    CLUSTER=down takes it away, or any other command of Compose
# make test-clients-cluster  the client tests through any of three brokers;
#                    ARGS="-m each_change" runs a part that takes minutes
# make test-cluster  the tests that need real replicas, against a cluster that is there:
#                    URLS=HOST:PORT,... of its brokers, CLICKHOUSE=URL,... of all its servers
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
SEED ?=
MINUTES ?= 10

CLUSTER ?= up
URLS ?= localhost:9092,localhost:9093
CLICKHOUSE ?= http://localhost:8123,http://localhost:8124,http://localhost:8125,http://localhost:8126

.PHONY: run test test-spark lint format bench bench-groups bench-scaling bench-spark fuzz history cluster test-cluster test-clients-cluster clean
.DEFAULT_GOAL := run

run: $(INSTALLED)
	@exec $(BIN)/brokerhouse serve $(ARGS)

test: $(INSTALLED_DEV)
	@tools/require tests
	$(if $(strip $(ARGS)),$(BIN)/pytest $(ARGS),tools/run-tests $(BIN)/pytest)

test-spark: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/pytest -m slow tests/spark $(ARGS)

test-clients-cluster: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/pytest --cluster tests/clients $(ARGS)

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

bench-scaling: $(INSTALLED_DEV)
	$(BIN)/python -m bench.scaling $(ARGS)

bench-spark: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python -m bench.spark $(ARGS)

history: $(INSTALLED_DEV)
	@tools/require tests
	HISTORY_SEED=$(SEED) HISTORY_MINUTES=$(MINUTES) $(BIN)/pytest -m slow -s --timeout 0 \
	    tests/faults/history/test_cluster.py -k for_long $(ARGS)

fuzz: $(INSTALLED_DEV)
	$(BIN)/pytest -m fuzz --timeout 0 $(ARGS)

cluster:
	@tools/cluster $(CLUSTER)

test-cluster: $(INSTALLED_DEV)
	$(BIN)/pytest tests/cluster --kafka '$(URLS)' --clickhouse '$(CLICKHOUSE)' $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info protocol/*.so protocol/_*.c .mypy_cache .pytest_cache .ruff_cache

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
