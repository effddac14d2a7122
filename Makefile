# make run | test | lint | bench | benchmarks: each makes the environment it needs.
export FLWR_TELEMETRY_ENABLED := 0
export RAY_USAGE_STATS_ENABLED := 0
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup run test lint bench benchmarks browser clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

run: setup
	$(BIN)/python -m privfed.run algo=fedrep eps=1

test: setup lint browser
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Tests open the pages in a real browser. Without one they are skipped, so that nothing here may fail.
browser:
	@if found=$$(echo $$PRIVFED_CHROMIUM | grep . || command -v chromium || command -v chromium-browser || command -v google-chrome); \
	then echo "pages are tested in $$found"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		timeout 300 sh -c 'apt-get update -qq && apt-get install -y -qq chromium' >/dev/null 2>&1 \
			&& echo "installed chromium for the tests of pages" || echo "no chromium: tests of pages will be skipped"; \
	else echo "no chromium: tests of pages will be skipped"; fi

# Measures everything and compares it with the last committed figures: make bench BENCH="--quick --only limits rivals"
bench: setup
	$(BIN)/python benchmarks/bench.py $(BENCH)

# The same, and writes docs/benchmarks.md, its picture and a line of docs/benchmarks.jsonl; with ten million users, too.
benchmarks: setup
	$(BIN)/python benchmarks/bench.py --long --write $(BENCH)

clean:
	rm -rf .venv build *.egg-info
