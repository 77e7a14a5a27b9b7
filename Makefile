# Every target needs Python 3.11 or later with its module venv, make, and a package index, and installs everything else
# into virtual environments. What a target needs beyond that is said above it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export JAX_PLATFORMS ?= cpu

.PHONY: demo test lint types unit test-slow test-box2d test-mujoco test-byzfl test-interop test-report test-dist dist release bench fuzz docs notebooks theory clean setup

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# 13 agents learn CartPole, 3 of them Byzantine: a fault-tolerant federation and a naive one, under the same attack.
DEMO = --preset cartpole --agents 13 --byzantine 3 --attack avg-zero --seeds 2 --trajectories 1000
demo: setup
	rm -rf demo/decbyzpg demo/dec-page-pg
	$(BIN)/jaxbyz train --algorithm decbyzpg $(DEMO) --out demo/decbyzpg
	$(BIN)/jaxbyz train --algorithm dec-page-pg $(DEMO) --out demo/dec-page-pg
	$(BIN)/jaxbyz plot demo/decbyzpg demo/dec-page-pg --out demo/curves.png
	$(BIN)/jaxbyz report demo/decbyzpg demo/dec-page-pg --out demo/report.html --animations 1

test: setup lint types docs unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

unit: setup
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=40 --timeout 300 -m "not slow and not live and not dist"

test-slow: setup
	$(BIN)/python -m pytest --timeout 3600 -m slow

# Comparisons with other programs, each installed in its own environment.
# Box2D is built from its source and needs a C++ compiler (Debian: apt-get install g++). The package swig is a script
# that imports itself, which it cannot do inside pip's isolated build, so the build uses this environment.
$(VENV)-box2d/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-box2d
	$(VENV)-box2d/bin/pip install --quiet --disable-pip-version-check 'setuptools<81' wheel swig
	PATH=$(CURDIR)/$(VENV)-box2d/bin:$$PATH $(VENV)-box2d/bin/pip install --quiet --disable-pip-version-check \
		--no-build-isolation gymnasium==1.3.0 box2d-py==2.3.8 pygame==2.6.1
	$(VENV)-box2d/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[gymnasium,test]'
	touch $@

test-box2d: setup $(VENV)-box2d/.installed
	JAXBYZ_BOX2D_PYTHON=$(CURDIR)/$(VENV)-box2d/bin/python $(BIN)/python -m pytest -m live tests/environments/test_lunar_lander.py
	$(VENV)-box2d/bin/python -m pytest --timeout 3600 -m live -s -k LunarLander tests/environments/test_gymnasium_live.py

$(VENV)-mujoco/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-mujoco
	$(VENV)-mujoco/bin/pip install --quiet --disable-pip-version-check -c constraints.txt mujoco==3.17.0 imageio \
		-e '.[gymnasium,test]'
	touch $@

test-mujoco: setup $(VENV)-mujoco/.installed
	JAXBYZ_MUJOCO_PYTHON=$(CURDIR)/$(VENV)-mujoco/bin/python $(BIN)/python -m pytest -m live -s tests/environments/test_mujoco_live.py
	$(VENV)-mujoco/bin/python -m pytest --timeout 3600 -m live -s -k HalfCheetah tests/environments/test_gymnasium_live.py

$(VENV)-byzfl/.installed:
	$(PYTHON) -m venv $(VENV)-byzfl
	$(VENV)-byzfl/bin/pip install --quiet --disable-pip-version-check byzfl==0.0.11 byzpy==0.1.4
	touch $@

test-byzfl: setup $(VENV)-byzfl/.installed
	JAXBYZ_BYZFL_PYTHON=$(CURDIR)/$(VENV)-byzfl/bin/python $(BIN)/python -m pytest -m live tests/rules/test_parity.py

# Rules and policies of this package with torch, Flower's own simulation and onnxruntime. Flower asks for other versions
# than constraints.txt has, so this environment is its own. It takes about 3 GB.
$(VENV)-interop/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-interop
	$(VENV)-interop/bin/pip install --quiet --disable-pip-version-check -e '.[flower,onnx,test,plots]' \
		'flwr[simulation]' onnxruntime torch==2.13.0
	touch $@

test-interop: $(VENV)-interop/.installed
	FLWR_TELEMETRY_ENABLED=0 $(VENV)-interop/bin/python -m pytest --timeout 1200 -m live tests/interop

# The HTML report, the leaderboard and the documentation in a real browser. Needs Chromium (Debian: apt-get install chromium; otherwise set CHROMIUM to its path).
test-report: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -m live tests/report/test_browser.py tests/benchmark/test_browser.py tests/test_docs_browser.py

# Wheel and sdist, each installed into a clean environment.
test-dist: setup
	$(BIN)/python -m pytest -m dist

# Build the wheel and the sdist into dist/, and check what an index will show of them.
dist: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

# Release a clean commit whose section of the changelog has a date: test, build, check and tag it. `twine upload dist/*` publishes it.
release: VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
release: setup
	test -z "$$(git status --porcelain)"
	grep -qE '^## $(VERSION) \([0-9]{4}-[0-9]{2}-[0-9]{2}\)' CHANGELOG.md
	$(MAKE) test test-slow test-report test-dist dist
	git tag --annotate v$(VERSION) --message "jaxbyz $(VERSION)"

# Measure the speed on this machine's CPU, in about 15 minutes; writes JSON files, a table and pictures.
bench: setup $(VENV)-byzfl/.installed
	$(VENV)-byzfl/bin/pip install --quiet --disable-pip-version-check gymnasium==1.3.0
	$(BIN)/python benchmarks/speed/bench.py --torch $(VENV)-byzfl/bin/python

# A thousand random configurations: each must train or be refused. Takes long.
fuzz: setup
	$(BIN)/python -m pytest -n auto -m slow tests/configuration/test_fuzz.py

# Build the documentation into site/. Broken links, missing pages and malformed docstrings are errors.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# Run every notebook with its full numbers and store its outputs: up to three minutes each on two cores.
notebooks: setup
	$(BIN)/jupytext --to ipynb --set-kernel python3 notebooks/*.py
	$(BIN)/jupyter-execute --inplace --NotebookClient.record_timing=False notebooks/*.ipynb

# Measure the paper's convergence rates on a small exactly solved problem; writes benchmarks/results/theory.json.
theory: setup
	$(BIN)/python benchmarks/theory/measure.py

clean:
	rm -rf $(VENV) $(VENV)-box2d $(VENV)-mujoco $(VENV)-byzfl $(VENV)-interop demo runs build dist site
