# truestep: `make run` trains CartPole-v1 from nothing; `make test` proves it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= runs

.PHONY: install run test test-all test-net watch lint bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Over Ray, two actors, by the recipe of CartPole-v1; ends with 100 fresh greedy episodes.
run: $(STAMP)
	$(BIN)/truestep train CartPole-v1 --actors 2 --out $(OUT)

# Runs over Ray one after the other in one process, everything else in a second one beside it.
test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" --timeout 300 -n 2 --no-loadscope-reorder

test-all: $(STAMP)
	$(BIN)/python -m pytest --timeout 3600

# Hosts in network namespaces of this machine: root only. Debian's packages that are missing are installed; openssh-server
# starts sshd for this machine where a service manager runs, and is needed for its program only.
NET_PACKAGES := iproute2 openssh-client openssh-server rsync prometheus
test-net: $(STAMP)
	dpkg --status $(NET_PACKAGES) > /dev/null 2>&1 || \
		(apt-get update && apt-get install --yes --no-install-recommends $(NET_PACKAGES))
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,cluster]'
	TRUESTEP_TEST_NET=1 $(BIN)/python -m pytest -m net -s tests/net

# A run of four actors and two ranks under a real Prometheus, which is installed here if it is not there; an actor, a
# rank and Prometheus are killed, and the run is stopped and resumed.
watch: $(STAMP)
	command -v prometheus > /dev/null || (apt-get update && apt-get install --yes --no-install-recommends prometheus)
	$(BIN)/python -m pytest -s tests/watching

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
