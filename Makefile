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

# 13 agents learn CartPole while 3 of them lie: the tolerant federation next to the naive one, under a colluding attack.
LIARS = --env CartPole-v1 --agents 13 --byzantine 3 --attack avg-zero --seeds 2 --trajectories 3000
demo: setup
	rm -rf demo/decbyzpg demo/dec-page-pg
	$(BIN)/jaxbyz train --algorithm decbyzpg $(LIARS) --out demo/decbyzpg
	$(BIN)/jaxbyz train --algorithm dec-page-pg $(LIARS) --out demo/dec-page-pg
	$(BIN)/jaxbyz plot demo/decbyzpg demo/dec-page-pg --out demo/curves.png --title "13 agents, 3 of them lie (AvgZero)"

test: setup lint types unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -n 2 --durations=15 -m "not slow and not live"

test-slow: setup
	$(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) demo runs build dist
