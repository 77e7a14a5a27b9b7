# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Every CPU core becomes one JAX device (jaxbyz sets it by itself on the command line).
export JAX_PLATFORMS ?= cpu

.PHONY: demo test lint types unit test-slow clean setup

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: setup lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -n 2 -m "not slow and not live"

test-slow: setup
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) demo runs build dist
