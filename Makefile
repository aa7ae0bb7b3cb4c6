# truestep: `make run` trains CartPole-v1 from nothing; `make test` proves it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= runs

.PHONY: install run test test-all lint bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Over Ray, two actors, by the recipe of CartPole-v1; ends with 100 fresh greedy episodes.
run: $(STAMP)
	$(BIN)/truestep train CartPole-v1 --actors 2 --out $(OUT)

test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" --timeout 300

test-all: $(STAMP)
	$(BIN)/python -m pytest --timeout 3600

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Peers beside truestep: `make bench` installs Stable-Baselines3 into the same environment.
bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,peers]'
	$(BIN)/python -m benchmarks.codec
	$(BIN)/python -m benchmarks.throughput

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .hypothesis
