# Two commands on a fresh clone: `make demo` and `make test`. Each makes its own virtual environment.
# `make CONSTRAINTS= demo` installs with your own torch (an unpinned torch may pull CUDA packages).
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

.PHONY: install demo test test-oldest lint types clean help

help:
	@echo "make install   install mercer into $(VENV)"
	@echo "make demo      install and reproduce results that need no download; ends with the path of report.html"
	@echo "make test      install with the test tools, then lint, types and all tests"
	@echo "make test-oldest   tests of every dependency's oldest release, in .venv-oldest; wants Python 3.11"
	@echo "make lint | types | clean"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run-stamp: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "Installing mercer into $(VENV) ..."
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.dev-stamp: $(VENV)/.run-stamp
	@echo "Installing the test tools into $(VENV) ..."
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@

install: $(VENV)/.run-stamp

demo: $(VENV)/.run-stamp
	$(BIN)/mercer reproduce --scale small --bundled --jobs 2

lint: $(VENV)/.dev-stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-stamp
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest

# Tests that reach each dependency. The code styles and types are the same with every release: `make test` has them.
OLDEST_TESTS := $(addprefix tests/,kernels/test_kernels.py nn/test_nn_transforms.py features/test_features.py \
	machines/test_machines.py storage/test_storage.py test_figures.py cli/test_cli.py tabular/test_tabular_frames.py \
	tabular/test_tabular_commands.py papers/test_data_loaders.py)

test-oldest:
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check \
		$(if $(CONSTRAINTS),-c $(CONSTRAINTS)) -c constraints-oldest.txt -e '.[test]'
	.venv-oldest/bin/python -m pytest $(OLDEST_TESTS)

clean:
	rm -rf $(VENV) .venv-oldest .mypy_cache .ruff_cache .pytest_cache
