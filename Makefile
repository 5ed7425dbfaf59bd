# On a fresh machine with Python 3.11 or newer: `make demo` trains an agent, `make test` runs every check.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DISTRIBUTIONS := rllm_core plugins/rllm_local plugins/rllm_envs
TOOLS := ruff mypy import-linter pytest pytest-timeout hypothesis types-PyYAML
INSTALLED := $(VENV)/.installed

.PHONY: help install demo test lint types tests clean

help:
	@echo "make demo     install, then train a tiny model to play a number game (about two minutes)"
	@echo "make test     install, then run every check: lint, types, import contracts, tests"
	@echo "make lint | types | tests    one of these alone"
	@echo "make clean    remove the virtual environment"

install: $(INSTALLED)

# Made once, and again only when a distribution's requirements or the tested versions change.
$(INSTALLED): constraints.txt Makefile $(addsuffix /pyproject.toml,$(DISTRIBUTIONS))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "rllm needs Python 3.11 or newer; say which: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# torch first and by itself: asked for through another package, the registry's default build brings gigabytes of CUDA.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  $(addprefix -e ,$(DISTRIBUTIONS)) $(TOOLS)
	@touch $@

demo: install
	$(BIN)/rllm train guess --overwrite rllm.trainer.experiment_name=demo

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: install
	$(BIN)/mypy

tests: install
	$(BIN)/pytest

test: lint types tests

clean:
	rm -rf $(VENV)
