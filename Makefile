# Polyarm: make demo and make test need git, make, a C++ compiler and CPython 3.10 to 3.13 with its headers; they bring the rest.
# PYTHON=/path/to/python3.12 chooses the interpreter of a new environment; TORCH_INDEX=URL the package index to take torch from.

BIN := .venv/bin
PYTHON3 ?= python3
export PYTHON TORCH_INDEX

# Tests and demos share the machine with physics and nodes: more threads than that make a model slower, not faster.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= PASSIVE

.DEFAULT_GOAL := help
.PHONY: help env build demo test lint lock clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' Makefile

env: ## virtual environment with pinned packages and ROS 2 in .venv
	@$(PYTHON3) tools/bootstrap.py env

build: ## that, and the messages and nodes, with colcon
	@$(PYTHON3) tools/bootstrap.py build

demo: build ## three arms sort three cubes; table, bag and picture at the end
	@$(BIN)/polyarm run sort --seeds 0 --record

test: build ## the default test suite
	@$(BIN)/python -m pytest

lint: env ## ruff and mypy
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m mypy

lock: ## resolve the requirements again, for every CPython that is supported
	@$(PYTHON3) tools/lock.py

clean: ## remove what was built and recorded
	rm -rf .polyarm build install log runs dist src/*.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache

distclean: clean ## that, and the environment
	rm -rf .venv
