# Every target stands alone: it makes .venv when needed, installs into it once, and runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := test,notebook
# On two cores: while one process waits for a cluster or for ranks, two compute.
JOBS ?= 3

.PHONY: install demo test check lint types bench bench-cluster docs format clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed: apt-get install python3 (or make PYTHON=/path/to/python3.11)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

$(VENV)/installed-bench: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS),bench]'
	@touch $@

install: $(VENV)/installed  ## make .venv and install everything into it

demo: install  ## capture, profile, plan and run small models here, predicted beside measured
	$(BIN)/shardwright demo

test: install  ## the tests, in JOBS=3 processes
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

check: lint types test  ## what CI runs: ruff, mypy --strict, tests

format: install  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/installed-bench  ## run every benchmark whole and write benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

bench-cluster: install  ## predicted beside measured on machines of yours: ARGS="--slurm --ranks 8 ..."
	$(BIN)/python -m benchmarks.on_cluster $(ARGS)

docs: install  ## write the reference pages from the code, and the documentation as a site
	$(BIN)/python -m docs.reference.generate
	$(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build *.egg-info
