# Two commands on a fresh machine with Python 3.11 and make: `make run`, `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: env run test test-pure test-ray lint test-chaos test-chaos-kills test-chaos-faults test-chaos-short test-simulation test-cluster bench clean

env: .venv/.ready

# uv inside the venv (seconds); plain pip where it cannot be had or does not trust the network's certificates (a minute)
.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; say make PYTHON=python3.11"; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "no venv module: apt install python3-venv"; exit 2; }
	@{ $(BIN)/pip install -q uv && UV_SYSTEM_CERTS=1 $(BIN)/uv pip install -q -p $(BIN)/python -c constraints.txt -e '.[dev]'; } || \
	  $(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

# the main job: 5,000 items against the simulated server, each time in a new folder
run: env
	$(BIN)/evalpipe run configs/logic-5k.yaml --resume never

# both halves at once: what meets Ray waits most of the time
test: env
	@$(MAKE) --no-print-directory -j2 --output-sync=target test-pure test-ray

HEAVY := not chaos and not cluster and not engines and not slow

test-pure: env
	$(BIN)/pytest -m "not ray and $(HEAVY)"

test-ray: env
	$(BIN)/pytest -m "ray and $(HEAVY)"

# what takes minutes: everything killed, cut off, lied to; the short form is a seeded selection of it
test-chaos: env
	@$(MAKE) --no-print-directory -j2 --output-sync=target test-chaos-kills test-chaos-faults

KILLS := tests/chaos/test_driver_kills.py tests/chaos/test_worker_kills.py tests/chaos/test_node_kills.py

test-chaos-kills: env
	$(BIN)/pytest -m chaos --timeout 900 $(KILLS)

# a server that misbehaves is mostly waited for; then the simulation, the store, and who may drive
test-chaos-faults: env
	$(BIN)/pytest -m "chaos or slow" --timeout 900 $(KILLS:%=--ignore=%)

test-chaos-short: env
	$(BIN)/pytest -m "chaos and short"

# seeded worlds of crashes in one process
test-simulation: env
	$(BIN)/python tests/simulation/run.py --seeds 2000 --sweep --jobs 2

# three nodes in network namespaces, and a job on a head of its own: root and iproute2; about twelve minutes
test-cluster: env
	$(BIN)/pytest -m cluster --timeout 900 tests/cluster tests/security

lint: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: env
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache
