SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# uv trusts only its built-in roots; behind a mirror with a CA of its own the system's store is the right one.
export UV_SYSTEM_CERTS := 1
# Compiling costs the installation three seconds and saves every process half of its start, also where
# Python may not write bytecode itself.
export UV_COMPILE_BYTECODE := 1

# The distributions that are not named like their package.
MODULES := fleetbus-sdk=fleetbus,fleetbus=fleetbus_cli
MEMBERS := proto sdk cli services/watcher services/reconciler services/distributor services/query-api services/archiver services/agent emulator devfleet
UV := $(shell v=$$(uv --version 2>/dev/null | cut -d' ' -f2 || true); printf '0.9\n%s\n' "$$v" | sort -VC && echo uv || echo $(CURDIR)/.tools/bin/uv)
RUN := $(UV) run --frozen --no-sync
SYNCED := .venv/.synced

help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

$(CURDIR)/.tools/bin/uv:
	python3 -m venv .tools
	.tools/bin/python -m pip install -q --no-deps --require-hashes --requirement .ci/uv.txt

$(SYNCED): pyproject.toml uv.lock $(MEMBERS:%=%/pyproject.toml) | $(filter-out uv,$(UV))
	$(UV) sync -q --locked --all-packages
	touch $@

install: $(SYNCED) ## everything this project needs, into .venv

demo: $(SYNCED) ## the whole fleet in one minute: start, apply, reconcile, break, heal, stop
	$(RUN) fleetbus demo

up: $(SYNCED) ## start a fleet and leave it running
	$(RUN) fleetbus dev up

down: $(SYNCED) ## stop the fleet that `make up` started
	$(RUN) fleetbus dev down

# What files say, not what code does: names, words, links, rules, generated pages.
HOUSE := tests/layout
check: $(SYNCED) ## format, lint, types, layers, dependencies, names, words and links
	$(RUN) ruff format --check
	$(RUN) ruff check
	$(RUN) lint-imports --no-logo
	for m in $(MEMBERS); do (cd $$m && $(RUN) --project $(CURDIR) deptry . --package-module-name-map $(MODULES) >/dev/null 2>$(CURDIR)/.venv/deptry.log || { cat $(CURDIR)/.venv/deptry.log; exit 1; }); done
	$(RUN) pyright
	$(RUN) pytest -q $(HOUSE)

EMULATOR := tests/emulator tests/conformance
IN_PARALLEL := -n auto --dist worksteal
test test-slow: PYTEST := $(if $(STORE),FLEETBUS_DEV_STORE=$(STORE)) $(RUN) pytest
# Among thousands of tests on real servers some wait in vain for a machine that is busy with the others. What
# failed runs once more, alone, up to the first that fails again; both are in the output.
test test-slow: ONCE_MORE = { test $$? -eq 1 && echo "make $@: what failed, once more and alone:" && $(PYTEST) --last-failed --last-failed-no-failures=none --exitfirst; }
# Without bytecode each run compiles every test anew, and each of its processes every module of ours: ten seconds.
test test-slow: export PYTHONDONTWRITEBYTECODE :=
test: $(SYNCED) ## the default suite, on real servers; STORE=redis, or the path of a server, for another store than Valkey
	$(PYTEST) $(IN_PARALLEL) -m 'not slow' --durations 5 --durations-min 5 $(addprefix --ignore=,$(HOUSE) $(EMULATOR)) || $(ONCE_MORE)

test-slow: $(SYNCED) ## the tests that take a second or more: processes killed, servers lost, patience tried; STORE= as above
	$(PYTEST) $(IN_PARALLEL) -m slow || $(ONCE_MORE)

test-emulator: export PYTHONDONTWRITEBYTECODE :=
test-emulator: $(SYNCED) ## the tests of the emulated API servers, and their conformance cases
	$(RUN) pytest $(IN_PARALLEL) $(EMULATOR)

scenarios: $(SYNCED) ## the acceptance scenarios with the services' own timers, small and wide, and every other test that is too long for `make test`, or longer here
	FLEETBUS_TEST_FULL=1 $(RUN) pytest -m 'full or longer' --timeout 600

test-ui: $(SYNCED) ## the page in a headless Chromium (`apt-get install chromium`), with its measurements; SHOTS=1 writes docs/images anew
	FLEETBUS_TEST_UI=1 FLEETBUS_TEST_SHOTS=$(SHOTS) $(RUN) pytest tests/query_api/page -s --timeout 300

conformance: $(SYNCED) ## how faithful the emulated API servers are: cases, clients, and with PROBES=folder the answers of real ones
	$(if $(PROBES),FLEETBUS_PROBES=$(PROBES)) $(RUN) python tests/run.py conformance

bench: $(SYNCED) ## benchmarks; each figure beside a baseline of the same run; BENCH="watcher relist" for some
	$(RUN) python tests/run.py bench $(BENCH)

faults: $(SYNCED) ## watchers killed and everything broken under load, three seeds, half an hour; SEEDS=1,2 KILLS=50
	$(RUN) python tests/run.py faults.watchers $(if $(SEEDS),--seeds $(SEEDS)) $(if $(KILLS),--kills $(KILLS))

faults-cut: $(SYNCED) ## the same in about a minute, with a fresh seed
	$(RUN) python tests/run.py faults.watchers --cut

faults-cluster: $(SYNCED) ## the same on a NATS cluster of three, whose servers die, stand still or lose their disks, also two at once; SEEDS= KILLS=
	$(RUN) python tests/run.py faults.watchers --servers 3 --losses 4 $(if $(SEEDS),--seeds $(SEEDS),--seed 44) $(if $(KILLS),--kills $(KILLS))

faults-workers: $(SYNCED) ## workers killed and stopped, stores broken under load, three seeds, a quarter of an hour; SEEDS= KILLS=
	$(RUN) python tests/run.py faults.workers $(if $(SEEDS),--seeds $(SEEDS)) $(if $(KILLS),--kills $(KILLS))

faults-workers-cut: $(SYNCED) ## the same in less than a minute, with a fresh seed
	$(RUN) python tests/run.py faults.workers --cut

faults-distributor: $(SYNCED) ## distributors killed between two writes and at any time, targets, hub and names broken, three seeds, a quarter of an hour; SEEDS= KILLS=
	$(RUN) python tests/run.py faults.distributors $(if $(SEEDS),--seeds $(SEEDS)) $(if $(KILLS),--kills $(KILLS))

faults-distributor-cut: $(SYNCED) ## the same in less than a minute, with a fresh seed
	$(RUN) python tests/run.py faults.distributors --cut

faults-watches: $(SYNCED) ## clients list and watch through the query API while it and everything behind it breaks, three seeds, a quarter of an hour; SEEDS= DECKS=
	$(RUN) python tests/run.py faults.queries $(if $(SEEDS),--seeds $(SEEDS)) $(if $(DECKS),--decks $(DECKS))

faults-watches-cut: $(SYNCED) ## the same in less than a minute, with a fresh seed
	$(RUN) python tests/run.py faults.queries --cut

soak: $(SYNCED) ## two hours of churn on 20 clusters with small faults: nothing may grow; HOURS= SEED=; with plots, in reports/soak
	status=0; $(RUN) python tests/run.py soak $(if $(HOURS),--hours $(HOURS)) $(if $(SEED),--seed $(SEED)) || status=$$?; \
	UV_PROJECT_ENVIRONMENT=$(CURDIR)/.tools/soak $(UV) run -q --locked --only-group soak python tests/run.py soak.plots; exit $$status

dist: $(SYNCED) ## what a release publishes, into dist: wheels and sdists of one version, and their SBOM
	UV=$(UV) $(RUN) python tests/run.py release.dist

test-dist: $(SYNCED) ## install a release from an index on loopback, with each Python from 3.11 on that is here; PYTHON=3.12 for one
	FLEETBUS_TEST_FULL=1 $(RUN) pytest tests/release --timeout 900 $(if $(PYTHON),-k 'not demo or $(PYTHON)')

test-upgrade: $(SYNCED) ## this version beside the one before, forwards and back, a few minutes; FROM=commit for another one than the last release
	$(if $(FROM),FLEETBUS_UPGRADE_FROM=$(FROM)) FLEETBUS_TEST_FULL=1 $(RUN) pytest tests/upgrade

test-upgrade-cut: $(SYNCED) ## one such upgrade, in less than a minute once the version before is installed
	$(if $(FROM),FLEETBUS_UPGRADE_FROM=$(FROM)) FLEETBUS_TEST_FULL=1 $(RUN) pytest tests/upgrade -k one_after_the_other

e2e: $(SYNCED) ## on three real control planes of Kubernetes, half an hour; needs Go or KUBEBUILDER_ASSETS; E2E="campaign --seed 7" for a part, KUBE=1.37 for another release
	$(if $(KUBE),FLEETBUS_KUBE=$(KUBE)) $(RUN) python tests/run.py e2e $(E2E)

golden: $(SYNCED) ## write the golden vectors of the wire contract anew
	$(RUN) pytest tests/proto --update-golden

reference: $(SYNCED) ## write docs/reference anew from the code
	$(RUN) python tests/run.py reference

docs: export UV_PROJECT_ENVIRONMENT := $(CURDIR)/.tools/docs
docs: | $(filter-out uv,$(UV)) ## the documentation as a site with search, in site/; any broken link or anchor fails
	rm -rf site
	$(UV) run -q --locked --only-group docs sphinx-build -q --fail-on-warning --keep-going --nitpicky docs site
	cp site/README.html site/index.html

format: $(SYNCED) ## let ruff mend what it can
	$(RUN) ruff format
	$(RUN) ruff check --fix

.PHONY: help install demo up down check test test-slow test-emulator test-ui dist test-dist test-upgrade test-upgrade-cut scenarios conformance bench faults faults-cut faults-cluster faults-workers faults-workers-cut faults-distributor faults-distributor-cut faults-watches faults-watches-cut soak e2e golden reference docs format
