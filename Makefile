# Everything runs from .venv, which the first target that needs it makes itself.
# Needed on the machine: make and Python 3.11 or newer (with the venv module).

VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Two pytest processes, one of them for what needs neither Ray nor Prefect.
TESTS := $(BIN)/python tests/side_by_side.py
# The benchmarks' peers pin versions that development does not want.
BENCH_VENV := .venv-bench

# Nothing here phones home, and Ray must not guess a runtime environment from uv.
export DO_NOT_TRACK := 1
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export RAY_USAGE_STATS_ENABLED := 0
export RAY_ENABLE_UV_RUN_RUNTIME_ENV := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Ray's socket paths have a length limit that a long TMPDIR would pass.
export RAY_TMPDIR ?= /tmp

# The first of these that really runs, is new enough and can make a venv; PYTHON=... overrides.
CANDIDATES := python3.11 python3 python3.12 python3.13 python
PYTHON_FITS := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

.DEFAULT_GOAL := help
.PHONY: help demo test test-all versions check handed bench bench-core soak states lock clean install-demo install-dev

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

demo: $(VENV)/.demo-installed  ## run the nightly flow on sample PDFs, all local (KEEP=1 leaves the servers up)
	$(BIN)/python -m rayorch_prefect.cli.demo $(if $(KEEP),--keep)

test: $(VENV)/.dev-installed  ## run the tests, without those marked slow (ARGS=... goes to pytest)
	$(TESTS) -m "not slow" $(ARGS)

# pytest answers 5 when it found no test. That is a failure, except for the slow ones right after
# `make test`, which has then run some: there may be none.
test-all: $(VENV)/.dev-installed  ## run every test (TESTED=1: only what `make test` left out)
	$(TESTS) $(if $(TESTED),-m slow $(ARGS) || test $$? -eq 5,$(ARGS))
	$(BIN)/python tests/versions.py

versions: $(VENV)/.dev-installed  ## a few tests with the lowest and newest Prefect and Ray, and on Python 3.13
	$(BIN)/python tests/versions.py

check: $(VENV)/.dev-installed  ## lint, formatting, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

handed: $(VENV)/.dev-installed  ## run the handed-over cases and print one line an id
	$(PYTEST) --handed $(ARGS)

bench: $(BENCH_VENV)/.bench-installed  ## measure against the peers (ARGS="w1 --rounds 3" chooses, ARGS=--help tells)
	$(BENCH_VENV)/bin/python -m benchmarks $(ARGS)

bench-core: $(BENCH_VENV)/.bench-installed  ## hold the pure core against its saved ratios (ARGS=--save-ratios saves anew)
	$(BENCH_VENV)/bin/python -m pytest -c benchmarks/core/pytest.ini benchmarks/core $(ARGS)

soak: $(VENV)/.dev-installed  ## kill workers and nodes at random for MINUTES=30 (ARGS="--seed N" repeats the choices, ARGS=--nights kills whole nights)
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),30) $(ARGS)

states: $(VENV)/.dev-installed  ## draw docs/states.md anew from the code's tables
	$(BIN)/python -m rayorch_prefect.cli.states > docs/states.md

install-demo: $(VENV)/.demo-installed  ## make .venv with what the demo needs

install-dev: $(VENV)/.dev-installed  ## make .venv with what the tests and checks need

$(BIN)/python $(BENCH_VENV)/bin/python:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
	    for candidate in $(CANDIDATES); do \
	        if $$candidate -c '$(PYTHON_FITS)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	    done; \
	fi; \
	if [ -z "$$python" ] || ! $$python -c '$(PYTHON_FITS)' >/dev/null 2>&1; then \
	    echo "error: $${python:-none of $(CANDIDATES)} is no Python 3.11 or newer with venv and ensurepip." >&2; \
	    echo "Install one (on Debian and Ubuntu also python3-venv), or name it: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	fi; \
	venv=$(@:/bin/python=); \
	echo "making $$venv with $$($$python --version)"; \
	$$python -m venv $$venv || { rm -rf $$venv; exit 1; }

# The locks hold setuptools too, so the project's own build asks no registry for anything.
$(VENV)/.demo-installed $(VENV)/.dev-installed: $(VENV)/.%-installed: requirements/%.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --require-hashes -r $<
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(BENCH_VENV)/.bench-installed: requirements/bench.txt pyproject.toml | $(BENCH_VENV)/bin/python
	$(BENCH_VENV)/bin/python -m pip install --quiet --require-hashes -r $<
	$(BENCH_VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# dev first: demo is cut from it, so that both sets agree on every version.
LOCK := pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
    --generate-hashes --no-annotate --custom-compile-command "make lock"

lock: $(VENV)/.dev-installed  ## bring requirements/*.txt up to what pyproject.toml asks (ARGS=--upgrade for newer)
	$(BIN)/uv $(LOCK) $(ARGS) --extra dev --output-file requirements/dev.txt pyproject.toml
	$(BIN)/uv $(LOCK) $(ARGS) --extra demo --constraint requirements/dev.txt \
	    --output-file requirements/demo.txt pyproject.toml requirements/build.in
	$(BIN)/uv $(LOCK) $(ARGS) --resolution lowest-direct --output-file requirements/lowest.txt \
	    pyproject.toml requirements/lowest.in
	test -f requirements/bench.txt || cp requirements/dev.txt requirements/bench.txt
	$(BIN)/uv $(LOCK) $(ARGS) --extra bench --output-file requirements/bench.txt \
	    pyproject.toml requirements/build.in

clean:  ## remove what the targets here made, but for the environments
	rm -rf build dist .demo .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -path './.venv*' -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
