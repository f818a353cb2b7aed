# Everything starts here: `make demo` and `make test` need only Python >= 3.11 and Java >= 17.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
FUZZ_INPUTS ?= 1000000
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast fuzz kill-points conformance mutants interop check docs format lock clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv/ from requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: install it (on Debian or Ubuntu: apt-get install python3 python3-venv)." >&2; exit 1; }
	@$(PYTHON) harness/java.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: setup ## a cluster, a failover, a zombie and the report: demo/report.html, demo/capture.pcapng
	$(BIN)/kce demo

test: setup ## the whole suite
	$(BIN)/python -m tests

test-fast: setup ## what needs neither JVM nor Spark, for the inner loop
	$(BIN)/python -m pytest -m "not slow"

fuzz: setup ## every decoder against a million nearly-messages (some ten minutes; FUZZ_INPUTS=n for more or fewer)
	KCE_FUZZ_INPUTS=$(FUZZ_INPUTS) $(BIN)/python -m pytest tests/wire/test_fuzz.py -q

kill-points: setup ## kill -9 of a controller's process at each point of what it does (some five minutes)
	KCE_KILL_EVERY=1 $(BIN)/python -m pytest tests/harness/test_kill_points.py -q

conformance: setup ## which upstream test cases are ported, which not, and why
	$(BIN)/python -m tests.conformance

interop: setup ## real Kafka brokers under our controller and under Kafka's own, side by side: docs/interop.md
	$(BIN)/python -m tests.interop

mutants: setup ## do the tests notice an inverted decision in the controller or in fencing?
	$(BIN)/python -m tests.mutants

check: setup ## lint, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup ## write docs/wire.md and docs/schema.md anew, which are made from the code
	$(BIN)/python -m wire.descriptions > docs/wire.md
	$(BIN)/python -m captures.schema_document > docs/schema.md

format: setup ## let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: setup ## pin anew what pyproject.toml asks for
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-header --quiet --upgrade --output-file requirements.lock

clean: ## remove what make made, but not .venv/
	rm -rf demo dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse
