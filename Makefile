# Everything a newcomer needs: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CACHE := .cache
LOCK := requirements.lock

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types imports format bench kafka lock clean

help:  ## Show the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "streamtrain needs Python 3.11 to 3.13 (TensorFlow has no wheels for %d.%d); run: make PYTHON=python3.12 ..." % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV): about 2 GB with TensorFlow, some minutes the first time"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY)  ## Create .venv with the locked dependencies

demo: $(READY)  ## Run the main job on embedded servers and real flights
	$(BIN)/streamtrain demo $(ARGS)

test: $(READY) kafka  ## Run the tests
	$(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

kafka: $(READY)  ## Fetch Apache Kafka for the tests that need it (with Maven; they are skipped without)
	@$(BIN)/python tools/kafka/fetch.py "$${STREAMTRAIN_KAFKA_CACHE:-$(CACHE)/kafka}"

bench: $(READY)  ## Measure it, beside its limits; JSON in bench-results/
	@$(BIN)/python benchmarks/run.py $(ARGS)

check: lint types imports  ## Lint, types and import contracts

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

format: $(READY)  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:  ## Renew requirements.lock (hash-pinned, no index addresses)
	$(PYTHON) -m venv $(CACHE)/lock
	$(CACHE)/lock/bin/pip install --quiet uv
	$(CACHE)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate \
	  --extra cpu --extra sandbox --extra dev pyproject.toml -o $(LOCK)

clean:  ## Remove what the targets made
	rm -rf $(VENV) $(CACHE) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
