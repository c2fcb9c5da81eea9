# make run      installs into .venv and starts a broker; ARGS passes flags to `brokerhouse serve`
# make test     installs what the tests need and tests each behaviour once, in parallel lanes;
#               with ARGS it runs one pytest with these arguments instead
# make test-all      every test; continues where it was interrupted; ARGS="--lane clients" runs a lane
# make test-touched  every test of the code that changed since a commit: SINCE=main~1
# make test-loaded   `make test` while all cores are busy: finds tests that depend on speed
# make test-dates     tests on other days, at the end of a year and in other time zones: those of unit
#               and engine, or ARGS="tests/clients/test_tables.py"
# make test-clients-cluster   the client tests through any of three brokers;
#               ARGS="-m each_change" runs a part that takes minutes
# make test-cluster   the tests that need real replicas, on a running cluster:
#               URLS=HOST:PORT,... of its brokers, CLICKHOUSE=URL,... of all its servers
# make test-spark     the long Spark tests: 10 million records, with kills of Spark
# make fuzz     random input, for minutes to hours
# make history  clients while parts of a cluster fail at random: SEED=7 MINUTES=10
# make history-transactions  the same with transactions
# make test-apps  Kafka Connect, Kafka Streams and Iceberg's sink with many kills of all processes, with
#               a single broker and a cluster: SEED=7 MINUTES=10 of kills for each
# make test-feeds  typed tables with many kills of brokers, single and in a cluster:
#               KILLS=40 ROWS=10000000
# make soak     hours of mixed clients, good and bad, and kill -9: HOURS=1; prints a table and draws
#               soak.svg, and fails if a record is lost or doubled, or if anything grows
# make lint     style and types; make format formats the code
# make bench    throughput and latency, compared with the bare engine
# make bench-cluster  three brokers on two embedded engines: idle, producing, failover
# make bench-groups   consumer groups: time to join, latency of commits
# make bench-kafka    the broker compared with Apache Kafka: ARGS="--quick" tries every part,
#               ARGS="--only defaults,cold" runs some, ARGS="--soak 10" lasts ten minutes
# make bench-scaling  the limits of a cluster, by simulation
# make bench-iceberg  the job iceberg compared with Kafka Connect's sink; growth of metadata
# make bench-jobs     the jobs lag, audit and compaction, and a start of PySpark
# make bench-tables   typed tables: rows per second, delay, effect on producers; ARGS=--cluster: the same
#               on a cluster of three brokers and two engines
# make bench-tables-kills   a feed compared with Kafka and a consumer or ClickHouse's connector, 20 kills
#               each: ARGS="--connector FOLDER" names the folder of the connector's jars
# make bench-views    the time of each SQL view on 10^8 records
# make bench-start    the time until a broker is ready, and of a command's --help
# make bench-spark    reading with Spark: the data source compared with Spark's Kafka source
# make cluster  2 shards x 2 replicas of ClickHouse, 3 Keepers, 2 brokers, by Docker Compose;
#               CLUSTER=down removes it, CLUSTER=COMMAND runs any other command of Compose
#
# PYTHON is the interpreter for .venv (3.11 or newer). The installation runs again
# when pyproject.toml, setup.py or a compiled module has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
INSTALLED_DEV := $(VENV)/installed-dev
INPUTS := pyproject.toml setup.py $(wildcard protocol/*.pyx protocol/*.pxd protocol/*.h storage/*.pyx feeds/values/*.pyx feeds/values/*.pxd)
ARGS ?=
SEED ?=
MINUTES ?= 10
KILLS ?= 40
ROWS ?= 0
HOURS ?= 1
SINCE ?= HEAD~1

CLUSTER ?= up
URLS ?= localhost:9092,localhost:9093
CLICKHOUSE ?= http://localhost:8123,http://localhost:8124,http://localhost:8125,http://localhost:8126

.PHONY: run test test-all test-touched test-loaded test-dates test-spark lint format bench bench-cluster bench-groups bench-iceberg bench-jobs bench-kafka bench-scaling bench-spark bench-start bench-tables bench-tables-kills bench-views definitions fuzz history history-transactions test-apps test-feeds soak cluster test-cluster test-clients-cluster clean
.DEFAULT_GOAL := run

run: $(INSTALLED)
	@exec $(BIN)/brokerhouse serve $(ARGS)

test: $(INSTALLED_DEV)
	@tools/require tests
	$(if $(strip $(ARGS)),$(BIN)/pytest $(ARGS),$(BIN)/python tools/run-tests)

test-all: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python tools/run-tests --all $(ARGS)

test-touched: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python tools/run-tests --touched $(SINCE)

test-loaded: $(INSTALLED_DEV)
	@tools/require tests
	tools/with-load $(if $(strip $(ARGS)),$(BIN)/pytest $(ARGS),$(BIN)/python tools/run-tests)

test-dates: $(INSTALLED_DEV)
	@tools/require tests
	tools/on-other-days $(BIN)/pytest $(if $(strip $(ARGS)),$(ARGS),tests/unit tests/engine)

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

# sql/definitions.sql, after a file was added to sql/schema/.
definitions: $(INSTALLED_DEV)
	$(BIN)/python tools/write-definitions

bench: $(INSTALLED_DEV)
	@tools/require bench
	$(BIN)/python -m bench $(ARGS)

bench-cluster: $(INSTALLED_DEV)
	@tools/require tests
	@tools/require bench-kafka
	$(BIN)/python -m bench.cluster $(ARGS)

bench-groups: $(INSTALLED_DEV)
	$(BIN)/python -m bench.groups $(ARGS)

bench-iceberg: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python -m bench.iceberg $(ARGS)

bench-jobs: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python -m bench.jobs $(ARGS)

bench-kafka: $(INSTALLED_DEV)
	@tools/require bench-kafka
	$(BIN)/python -m bench.kafka $(ARGS)

bench-scaling: $(INSTALLED_DEV)
	$(BIN)/python -m bench.scaling $(ARGS)

bench-spark: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python -m bench.spark $(ARGS)

bench-start: $(INSTALLED_DEV)
	$(BIN)/python -m bench.start $(ARGS)

bench-tables: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python -m bench.tables $(ARGS)

bench-tables-kills: $(INSTALLED_DEV)
	@tools/require tests
	@tools/require bench-kafka
	$(BIN)/python -m bench.feeds_compare $(ARGS)

bench-views: $(INSTALLED_DEV)
	$(BIN)/python -m bench.views $(ARGS)

test-feeds: $(INSTALLED_DEV)
	@tools/require tests
	FEED_KILLS=$(KILLS) FEED_FAULTS=$(KILLS) FEED_ROWS=$(ROWS) $(BIN)/pytest -m slow -s --timeout 0 \
	    tests/faults/test_feeds.py tests/faults/test_cluster_feeds.py $(ARGS)

history: $(INSTALLED_DEV)
	@tools/require tests
	HISTORY_SEED=$(SEED) HISTORY_MINUTES=$(MINUTES) $(BIN)/pytest -m slow -s --timeout 0 \
	    tests/faults/history/test_cluster.py -k for_long $(ARGS)

history-transactions: $(INSTALLED_DEV)
	@tools/require tests
	HISTORY_SEED=$(SEED) HISTORY_MINUTES=$(MINUTES) $(BIN)/pytest -m slow -s --timeout 0 \
	    tests/faults/history/test_transactions.py -k for_long $(ARGS)

test-apps: $(INSTALLED_DEV)
	@tools/require tests
	APPS_SEED=$(SEED) APPS_MINUTES=$(MINUTES) $(BIN)/pytest -m slow -s --timeout 0 \
	    tests/faults/test_connect.py tests/faults/test_streams.py \
	    tests/faults/test_iceberg_connect.py $(ARGS)

soak: $(INSTALLED_DEV)
	@tools/require tests
	$(BIN)/python -m bench.soak --hours $(HOURS) $(ARGS)

fuzz: $(INSTALLED_DEV)
	$(BIN)/pytest -m fuzz --timeout 0 $(ARGS)

cluster:
	@tools/cluster $(CLUSTER)

test-cluster: $(INSTALLED_DEV)
	$(BIN)/pytest tests/cluster --kafka '$(URLS)' --clickhouse '$(CLICKHOUSE)' $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info protocol/*.so protocol/_*.c storage/*.so storage/_*.c feeds/values/*.so feeds/values/_*.c coordinator/feeds .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	@tools/require python $(PYTHON)
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

# Both stamp files, because this also installs what `make run` needs.
$(INSTALLED_DEV): $(INPUTS) | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[test,lint]'
	@touch $(INSTALLED) $@
