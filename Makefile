# Start here: `make demo` and `make test` need only Python 3.11 or later and Java 17 or later.

PYTHONS := python3 python3.14 python3.13 python3.12 python3.11
# the fastest build of the first of them that is 3.11 or later
PYTHON ?= $(eval PYTHON := $(shell for p in $(PYTHONS); do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& $$p kce/fastest_python.py && break; done))$(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
FUZZ_INPUTS ?= 1000000
MUTANTS_SEED ?= 1
FUZZ_NODES ?= 100000
STAMP := $(VENV)/.installed
# RANDOM=1 runs tests in random order; the seed is printed, and RANDOM=<seed> repeats its order
RANDOM_ORDER := $(if $(RANDOM),-p randomly $(if $(filter-out 1,$(RANDOM)),--randomly-seed=$(RANDOM)))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast fuzz kill-points conformance mutants mutants-sample interop benchmarks check docs format lock clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## create .venv/ from requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: install it (on Debian or Ubuntu: apt-get install python3 python3-venv)." >&2; exit 1; }
	@$(PYTHON) kce/java.py
	@# what is there may be of another build
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# an editable install compiles nothing, and where Python may not write it every command would compile again
	@$(BIN)/python -m compileall -q kce kce/*/ pyspark_kafka_capture
	-@$(BIN)/python -m kce.harness.archive_classes
	@# or the first large capture waits for it
	-@$(BIN)/python -m kce.captures.spark.compile_kernels
	@touch $(STAMP)

demo: setup ## run a cluster, a failover and a zombie; write demo/report.html and demo/capture.pcapng
	$(BIN)/kce demo

test: setup ## run the whole suite (RANDOM=1: in random order)
	$(BIN)/python -m tests $(RANDOM_ORDER)

test-fast: setup ## run the tests without JVM and Spark on a sample of inputs, on all cores (RANDOM=1: in random order)
	$(BIN)/python -m pytest --fast --numprocesses=auto --dist=worksteal $(RANDOM_ORDER)

fuzz: setup ## fuzz every decoder with a million damaged messages, the controller with 100,000 znodes of each kind (FUZZ_INPUTS=n, FUZZ_NODES=n)
	KCE_FUZZ_INPUTS=$(FUZZ_INPUTS) $(BIN)/python -m pytest tests/wire/test_fuzz.py -q
	KCE_FUZZ_NODES=$(FUZZ_NODES) $(BIN)/python -m pytest tests/controller/test_malformed_znodes.py -q

kill-points: setup ## kill -9 a controller at each point of its operations, Ctrl-C each command at 20 moments: 20 minutes
	KCE_KILL_EVERY=1 KCE_SIGNAL_MOMENTS=20 $(BIN)/python -m pytest tests/harness/test_kill_points.py \
		tests/harness/test_interrupts.py -q

conformance: setup ## count the upstream test cases that have tests here, whole or in part, and say why others have none
	$(BIN)/python -m tests.conformance

interop: setup ## run real Kafka brokers under our controller and under Kafka's, side by side; write docs/interop.md
	$(BIN)/python -m tests.interop

mutants: setup ## check that the tests notice changes of the code: a sample of mutants, chosen by MUTANTS_SEED
	$(BIN)/python -m tests.mutants --seed $(MUTANTS_SEED)

mutants-sample: setup ## check that the tests notice a small sample of mutants, which stays the same, in some six minutes
	$(BIN)/python -m tests.mutants --stable 3

benchmarks: setup ## measure everything beside its peers, in some 40 minutes on a quiet machine; write docs/performance.md
	$(BIN)/python -m benchmarks

check: setup ## lint, check types and import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## generate docs/wire.md, docs/schema.md and docs/configuration.md from the code
	$(BIN)/python -m kce.wire.descriptions > docs/wire.md
	$(BIN)/python -m kce.captures.spark.schema_document > docs/schema.md
	$(BIN)/python -m kce.wire.configuration.document > docs/configuration.md

format: setup ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: setup ## pin the newest versions of all dependencies in requirements.lock
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra all --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --quiet --upgrade --output-file requirements.lock

clean: ## remove everything that make generated, except .venv/
	rm -rf demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse
