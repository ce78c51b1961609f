# Two commands do all the set-up: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Compiling all of torch takes longer than unpacking it; WARM compiles what a run imports.
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile
WARM := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m rollbus_launch.warm
TORCH := torch==2.13.0
PACKAGES := -e libs/wire -e libs/envs
TARGET ?= codec
RUNS ?= 1000000
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Rollbus needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# torch comes first and by exact version: a looser range takes a CUDA build of several gigabytes.
$(VENV)/.torch: | $(BIN)/python
	$(PIP) -c constraints.txt "$(TORCH)"
	@touch $@

$(VENV)/.quickstart: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) -c constraints.txt $(PACKAGES) -e ".[quickstart]"
	@$(WARM)
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) -c constraints.txt $(PACKAGES) -e ".[dev]"
	@$(WARM)
	@touch $@ $(VENV)/.quickstart

quickstart: $(VENV)/.quickstart  ## install for the CPU, train CartPole, evaluate it
	$(BIN)/rollbus train recipes/cartpole_ppo.yaml
	$(BIN)/rollbus eval runs/latest --episodes 20

install: $(VENV)/.dev  ## .venv with everything for development

# Paths of sockets are short (100 bytes), so the folder of the tests is, too. In the order of their names the
# long files of `system` come before the many small ones of `unit`, which fill what is left.
test: $(VENV)/.dev  ## all tests but the long ones
	@folder=$$(mktemp -d /tmp/rb.XXXX); \
	$(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile --no-loadscope-reorder --basetemp $$folder; \
	code=$$?; rm -rf $$folder; exit $$code

test-long: $(VENV)/.dev  ## the tests that take minutes
	$(BIN)/python -m pytest -m long --timeout 1800
	$(MAKE) curves-smoke

check: $(VENV)/.dev  ## ruff, mypy, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m rollbus_core.config.docs --check
	$(BIN)/python -m rollbus_launch.matrix --check

fuzz: $(VENV)/.dev  ## search for inputs that raise: TARGET=codec RUNS=1000000
	$(BIN)/python tests/fuzz/harness.py $(TARGET) --runs $(RUNS)

bench: $(VENV)/.dev  ## all benchmarks, into benchmarks/baselines; BENCH="--ray PYTHON --triton VENV" adds peers; most of an hour of a calm machine
	$(BIN)/python benchmarks/all.py $(BENCH)

curves: $(VENV)/.dev  ## learning curves of recipes, into docs/results; at most 3.5 hours, goes on where it was cut
	$(BIN)/python benchmarks/curves.py

curves-smoke: $(VENV)/.dev  ## a few updates of each recipe in them, at most 10 minutes
	$(BIN)/python benchmarks/curves.py --smoke --minutes 10 --out runs/curves-smoke

format: $(VENV)/.dev  ## format and regenerate docs
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m rollbus_core.config.docs
	$(BIN)/python -m rollbus_launch.matrix --write

clean:  ## remove .venv and caches; runs stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

.PHONY: help quickstart install test test-long fuzz bench curves curves-smoke check format clean
