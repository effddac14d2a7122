# make run | test | lint | bench: each makes the environment it needs.
export FLWR_TELEMETRY_ENABLED := 0
export RAY_USAGE_STATS_ENABLED := 0
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup run test lint bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

run: setup
	$(BIN)/python -m privfed.run algo=fedrep eps=1

test: setup lint
	$(BIN)/python -m pytest -n 3 --dist loadfile

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python scripts/bench.py

clean:
	rm -rf .venv build *.egg-info
