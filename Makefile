# make demo | make test | make lint | make site | make clean. Needs python >= 3.11 and make; everything else goes into .venv.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PROSE := README.md CHANGELOG.md CONTRIBUTING.md docs core cuda_ext data envs offline online safe streaming world_models \
  model_based llm evaluation src examples tools benchmarks
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard tools/*.py cuda_ext/native/*.* cuda_ext/native/*/*.*)

# The first python that is new enough and can create environments; `make demo PYTHON=/path/to/python` decides it.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11 python; do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
  then command -v "$$candidate"; break; fi; done)

.PHONY: demo test lint site clean
.DELETE_ON_ERROR:

demo: $(VENV)/.all
	$(BIN)/surefoot train

# One thread a worker: two workers with two threads each would fight over two cores. Compiled files are kept, also where
# the user keeps none: tests are rewritten, and processes started, from them.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

# mypy reads the tree itself; the last command checks that an editor finds every import of ours.
lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=src $(BIN)/python -m mypy -p surefoot
	$(BIN)/lint-imports --no-logo
	$(BIN)/codespell $(PROSE)
	$(BIN)/python tools/editor.py

# Pages, notebooks (executed) and the API as a site that opens from disk.
site: $(VENV)/.dev
	MPLBACKEND=Agg OMP_NUM_THREADS=1 $(BIN)/python tools/build_site.py
	@echo "site: build/site/html/index.html"

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: an environment is installed again only when what decides its content has changed.
$(VENV)/.python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "surefoot needs python 3.11 or newer with the venv module, and none was found on PATH: install one (Debian/Ubuntu: apt install python3 python3-venv) or name it, as in 'make demo PYTHON=/path/to/python3.11'." >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "surefoot needs python 3.11 or newer: $(PYTHON) is not. Name another, as in 'make demo PYTHON=/path/to/python3.11'." >&2; exit 1; }
	"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

$(VENV)/.all: $(VENV)/.python $(BUILD_INPUTS)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.python $(BUILD_INPUTS)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.all
