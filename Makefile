# Everything a fresh machine with Python 3.11+, make and git needs: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Whole files side by side.
PARALLEL ?= -n 2 --dist loadfile

.PHONY: setup demo test test-system lint bench paper swarm mutants protos clean

setup: $(READY)

# Exact versions come from constraints.txt; the stamp makes a second `make` reinstall nothing.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unicorn-mgr needs Python 3.11 or newer: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,stacks,dev]'
	touch $@

demo: setup
	$(BIN)/unicorn demo

test: setup lint
	$(BIN)/python -m pytest -m 'not system' $(PARALLEL) $(TESTS)

test-system: setup
	sh tools/system-packages.sh
	$(BIN)/python -m pytest -m system $(TESTS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/protos.py --check

bench: setup
	$(BIN)/python -m benchmarks $(BENCH)

# All comparisons of docs/simulation.md anew; takes about an hour.  PAPER names parts of it.
paper: setup
	$(BIN)/python tools/paper.py $(PAPER)

# Hostile histories in virtual time, from seed FIRST on.
SEEDS ?= 200
FIRST ?= 0
swarm: setup
	@echo "commit $$(git rev-parse --short HEAD)"
	$(BIN)/unicorn simulate --swarm-seed $(FIRST) --seeds $(SEEDS)

# Are mistakes in the cores noticed?  An hour or two; not a part of `make test`.
SEED ?= 1
COUNT ?= 100
mutants: setup
	PYTHONPATH=src:tests nice $(BIN)/python -m mutation --seed $(SEED) --count $(COUNT) $(MUTANTS)

protos: setup
	$(BIN)/python tools/protos.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
